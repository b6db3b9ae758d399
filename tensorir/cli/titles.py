"""Shortens workload titles by omitting default parameters, and expands them again."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorir.tune.log import LogReader


def brief(text: str) -> str:
    """``text`` with each operator's title in it shortened by its default flags:
    ``matmul m=8 n=8 k=8 batch=1 ta=0 act=None -> matmul m=8 n=8 k=8``.
    """
    if "=" not in text:
        return text
    return _title().sub(lambda found: found[1] + _telling(found[1], found[2]), text)


def _operators() -> ModuleType:
    from tensorir import ops  # most messages, and all help, have no titles

    return ops


@functools.cache
def _title() -> re.Pattern[str]:
    """Regular expression that finds titles of operators in a text; groups: name, ``k=v`` words."""
    names = sorted(_operators().OPERATORS, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(names)})((?: [a-z_]\w*=[\w.-]+)+)")


def _telling(op: str, parameters: str) -> str:
    usual = _defaults(op)
    return "".join(f" {word}" for word in parameters.split() if word not in usual)


@functools.cache
def _defaults(op: str) -> frozenset[str]:
    """The ``k=v`` words of an operator's title that equal its flags' default values; extents have none."""
    ops = _operators()
    found = inspect.signature(getattr(ops, op)).parameters
    values = {k: found[k].default for k in ops.OPERATORS[op].flags if k in found}
    return frozenset(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in values.items())


def whole(reader: LogReader, titles: Iterable[str]) -> list[str]:
    """Full titles in a log for each of ``titles``, short or full; unknown ones unchanged."""
    asked = list(titles)
    if not asked:
        return []
    stored = dict.fromkeys(run.workload for _, run in reader.brief().runs())
    by_brief = {brief(t): t for t in stored}
    return [t if t in stored else by_brief.get(brief(t), t) for t in asked]
