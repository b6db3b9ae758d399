"""Numbers 0 to 2 of a process's descriptors."""

import os


def reserve_standard_streams() -> None:
    """Open the null device under each of the numbers 0, 1, 2 that is closed (``>&-``, daemons).

    The next pipe or file would get that number: a child would find its own stdin there, and output of C libraries would
    end in a log.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
