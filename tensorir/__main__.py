"""Entry point of the command line: ``python -m tensorir`` and the command ``tensorir``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its import exits with 130, without a traceback."""
    try:
        from tensorir.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    main()
