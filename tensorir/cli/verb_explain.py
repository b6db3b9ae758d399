"""tensorir explain: the long text of an error code."""

from __future__ import annotations

from tensorir.cli import common
from tensorir.cli.common import put, usage
from tensorir.errors.catalogue import close_codes, explain, find


def run(code: str) -> int:
    """Print the explanation of an error code, such as split.covers-extent; return the exit code."""
    if find(code) is None:
        near = ", ".join(close_codes(code)[:5])
        raise usage(f"there is no error code {code!r:.60}", near)
    put(explain(code))
    return common.OK
