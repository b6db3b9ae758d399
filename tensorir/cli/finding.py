"""A line of doctor's answer."""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.codec import travels


@travels
@dataclass(frozen=True)
class Finding:
    """One line: ok is None for what is optional and absent."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
