"""Formats results as plain text tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from tensorir.cli.terminal import columns
from tensorir.cli.titles import brief
from tensorir.tune.outcome import TuneOutcome, without_default
from tensorir.tune.progress import between, milliseconds, rate, statuses

if TYPE_CHECKING:
    from tensorir.api.shape_outcome import SetOutcome


def outcome_text(o: TuneOutcome) -> str:
    """Text of a tuning run's result, one fact per line."""
    lines = [
        ("workload", o.identity.workload),
        ("device", f"{o.identity.device.get('id', '')} {o.identity.device['name']}"),
    ]
    best = o.best
    if best is not None and best.time_s is not None:
        text = between(best.time_s, best.low_s, best.high_s)
        text += f"  {rate(best.gflops * 1e9)}" if best.gflops else ""
        text += f"  {o.ratio.text(o.baseline['name'])}" if o.baseline and o.ratio else ""
        lines += [("best", text), ("config", f"{best.template}: {config_text(best.config)}"), ("trial", best.trial)]
    if o.ties:
        lines.append(("tied", ", ".join(t.trial for t in o.ties)))
    if o.default is not None:
        d = o.default
        lines.append(("default", between(d.time_s, d.low_s, d.high_s) if d.time_s else without_default(d.record)))
    if o.baseline:
        b = o.baseline
        lines.append(("baseline", f"{between(b['time_s'], b.get('low_s'), b.get('high_s'))}  {b['name']}"))
    if o.machine.words():
        lines.append(("machine", o.machine.words()))
    space = f"{o.space['configs']:,} configurations, {o.space['legal']:,} legal"
    lines += [("space", space), ("trials", f"{o.trials} new, {o.reused} reused  | {statuses(o.counts)}")]
    lines.append(("stopped", f"{o.stopped}{f' ({o.why})' if o.why else ''}"))
    if o.log_path:
        lines.append(("log", o.log_path))
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def config_text(config: Mapping[str, object]) -> str:
    """Configuration as ``tile 8  vec True``; "(no knobs)" for an empty one."""
    return "  ".join(f"{k} {v}" for k, v in config.items()) or "(no knobs)"


def set_text(found: SetOutcome) -> str:
    """Text on tuning several shapes: a table with one row each, totals, and the portfolio of kernels."""
    served = {} if found.portfolio is None else {s.workload: s for s in found.portfolio.served}
    rows = [["workload", "weight", "best", "rate", "default", "baseline", "ratio", "kernel", "regret", "trials"]]
    for result in found.results:
        o, best = result.outcome, result.best_s
        if o is None:
            continue
        mine = served.get(result.work.title)
        rows.append([
            result.work.title,
            f"{result.weight:g}",
            milliseconds(best) if best else o.status,
            rate(result.work.flops / best) if best else "",
            milliseconds(result.default_s) if result.default_s else "",
            f"{milliseconds(o.baseline['time_s'])} {o.baseline['name']}" if o.baseline else "",
            o.ratio.text() if o.ratio else "",
            "" if mine is None else str(mine.kernel),
            "" if mine is None else f"{mine.regret:.1%}",
            str(o.trials + o.reused),
        ])  # fmt: skip
    return "\n".join([table(rows), _totals(found), *_kernels(found), *_machines(found)])


def _machines(found: SetOutcome) -> list[str]:
    """One sentence per shape whose times the load of the machine may have disturbed."""
    said = {r.work.title: r.outcome.machine.words() for r in found.results if r.outcome is not None}
    return [f"{title}: {words}" for title, words in said.items() if words]


def _totals(found: SetOutcome) -> str:
    words = [("best", "total"), ("default", "by the defaults"), ("kernel", "by the kernels below")]
    parts = [(text, found.total_s(which)) for which, text in words]
    return ", ".join(f"{text} {milliseconds(s)}" for text, s in parts if s is not None) or "total unknown"


def _kernels(found: SetOutcome) -> list[str]:
    if found.portfolio is None:
        return []
    smallest = "the fewest" if found.portfolio.exact else "few (perhaps not the fewest)"
    number = len(found.portfolio.kernels)
    lines = [
        f"{number} kernel{'s' * (number != 1)}, {smallest} within {found.portfolio.regret:.1%} of each shape's best"
    ]
    return lines + [f"  {n}  {k.template}: {config_text(k.config)}" for n, k in enumerate(found.portfolio.kernels)]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Text of ``rows`` (the first: headings) in aligned columns, the first column left-aligned, the others right;
    titles of workloads are shortened. On a terminal too narrow cells are wrapped, or rows become blocks of lines.
    """
    rows = [[brief(cell) for cell in row] for row in rows]
    natural = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths = _widths(rows, natural, columns())
    if widths is None:
        return _blocks(rows)
    lines = []
    for row in rows:
        cells = [textwrap.wrap(c, w, break_on_hyphens=False) or [""] for c, w in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            placed = (
                p.ljust(w) if n == 0 or w < natural[n] else p.rjust(w)
                for n, (p, w) in enumerate(zip(parts, widths, strict=True))
            )
            lines.append("  ".join(placed).rstrip())
    return "\n".join(lines)


def _widths(rows: Sequence[Sequence[str]], natural: list[int], room: int) -> list[int] | None:
    """Width of each column so that all fit ``room`` characters, the widest shrunk; None if impossible. 0: unlimited
    room.

    natural: widths without wrapping
    """
    least = [max((len(word) for c in column for word in c.split()), default=0) for column in zip(*rows, strict=True)]
    widths = list(natural)
    while room and sum(widths) + 2 * (len(widths) - 1) > room:
        slack = [n for n, w in enumerate(widths) if w > max(least[n], 12)]
        if not slack:
            return None
        widths[max(slack, key=lambda n: widths[n])] -= 1
    return widths


def _blocks(rows: Sequence[Sequence[str]]) -> str:
    """Text of ``rows`` as blocks: the first cell as a title, the others below, each after its column's name from
    ``rows[0]``.
    """
    names = rows[0][1:]
    indent = max(map(len, names)) + 2
    lines = []
    for first, *rest in rows[1:]:
        lines += [first, *(f"  {name:{indent}}{cell}" for name, cell in zip(names, rest, strict=True) if cell)]
    return "\n".join(lines)
