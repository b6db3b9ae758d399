"""``python -m tensorir`` is the command line."""

from tensorir.cli.main import main

if __name__ == "__main__":
    main()
