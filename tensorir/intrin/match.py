"""Whether a nest computes what an instruction computes."""

from __future__ import annotations


class NoMatch(Exception):
    """Why a nest is not the instruction."""


def match(above, loop, stage, intrin):  # type: ignore[no-untyped-def]
    raise NoMatch("pending")
