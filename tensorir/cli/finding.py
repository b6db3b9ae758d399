"""``Finding``: one line of ``tensorir doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from tensorir.codec import travels


@travels
@dataclass(frozen=True)
class Finding:
    """One checked item: ok is True if it works, False if it is broken, None if it is optional and absent.

    detail: version, place or fault in words;  fix: a command or setting that mends it, "" if there is none
    """

    name: str
    ok: bool | None
    detail: str
    fix: str = ""
