"""``python -m tensorir``, and the command ``tensorir``, are the command line."""

import sys


def main() -> None:
    """Run it; Ctrl-C while it is loading is no traceback either."""
    try:
        from tensorir.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    main()
