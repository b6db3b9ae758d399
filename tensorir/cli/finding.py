"""``Finding``: one line of ``tensorir doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.codec import travels


@travels
@dataclass(frozen=True)
class Finding:
    """One checked item; ok is None for an optional item that is absent."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
