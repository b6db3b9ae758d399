"""Layer "tables": mutants of what is declared of each instruction for tensor cores.

Kernels fill fragments element by element, so that the declared places are what the text says, and in a second kind by
``ldmatrix``. The interpreter runs the meaning of an instruction on whole tiles and goes by the same tables; the
emulator's instructions are written after the manual, and tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cuda_tiles
from cuda_judge import Result, apart, sampled, trial
from cuda_programs import exchanged

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.errors import LoweringError, TensorIRError
from tensorir.interp.numbers import Field
from tensorir.intrin.cuda import MULTIPLICATIONS, loads_rows
from tensorir.intrin.intrin import INTRINSICS, Intrin, intrinsic
from tensorir.ir.layout import written
from tensorir.schedule.schedule import BaseSchedule

ORDERS = ("nn", "nt", "tn", "tt")


@dataclass(frozen=True)
class Wrong:
    """One mutant of an instruction."""

    kind: str
    place: str
    intrin: Intrin


def mutants(right: Intrin) -> Iterator[Wrong]:
    """Every pair of pieces of every table exchanged, and every pair of inputs in its text."""
    for field, parsed in (("fragments", right.held), ("addresses", right.addressed)):
        for b, layout in parsed.items():
            for what, other in exchanged(layout, b.dims):
                table = {**getattr(right, field), b.name: written(other)}
                place = f"{b.name}: {written(layout)} -> {written(other)}"
                try:
                    made = replace(right, **{field: table})
                except TensorIRError:
                    continue  # no table any more: refused when it is declared
                yield Wrong(f"{field}, {what} exchanged", f"{right.name}, {place}", made)
    names = [b.name for b in right.operands if f"{{{b.name}}}" in right.emit["cuda"]]
    for k, a in enumerate(names):
        for b in names[k + 1 :]:
            text = (
                right.emit["cuda"].replace(f"{{{a}}}", "{?}").replace(f"{{{b}}}", f"{{{a}}}").replace("{?}", f"{{{b}}}")
            )
            yield Wrong("operands exchanged", f"{right.name}: {text}", replace(right, emit={"cuda": text}))


def product(name: str, order: str, k: int, rows: str = "") -> BaseSchedule:
    """A product of two warps' tiles. ``rows``: the operand that ldmatrix fills."""
    m = MULTIPLICATIONS[name]
    a = tir.placeholder((32, k) if order[0] == "n" else (k, 32), m.dtype, name="a")
    b = tir.placeholder((k, 32) if order[1] == "n" else (32, k), m.dtype, name="b")
    r = tir.reduce_axis(k, name="k")

    def wide(x: Any) -> Any:
        return x if m.dtype == m.sums else tir.cast(x, m.sums)

    c = tir.compute(
        (32, 32),
        lambda i, j: tir.sum(
            wide(a[i, r] if order[0] == "n" else a[r, i]) * wide(b[r, j] if order[1] == "n" else b[j, r]), axis=r
        ),
        name="c",
    )
    s = tir.Schedule(tir.compute((32, 32), lambda i, j: c[i, j] + 0, name="out"), target=f"cuda -arch={m.needs}")
    wi, i = s.split("out.i", [None, 16])
    s.reorder(wi, i, "out.j").bind(wi, "warp.y")
    s.compute_at("c", wi)
    ko, ki, kk = s.split("c.k", [None, 2, m.k])
    j0, j1 = s.split("c.j", [None, 8])
    s.reorder(ko, ki, j0, "c.i", j1, kk)
    for operand in "ab":
        s.stage_in(operand, at=ko, scope="shared")
    for operand, how in zip("ab", order, strict=True):
        copy = s.stage_in(f"{operand}_shared", at=ki, scope="warp").name
        if operand in rows:
            along_k = (operand, how) in (("a", "n"), ("b", "t"))
            r0, r1 = s.split(f"{copy}.ax0", [None, 16 if along_k else m.k])
            c0, c1 = s.split(f"{copy}.ax1", [None, m.k if along_k else 16])
            s.reorder(r0, c0, r1, c1).tensorize(r1, f"ldmatrix.{m.name}.{operand}.{how}")
    return s.tensorize("c.i", f"mma.m16n8k{m.k}.{m.name}.{order}")


def judge(wrong: Intrin, make: Any) -> tuple[str, str] | None:
    """Who notices it: (detector, code); None when nobody does."""
    INTRINSICS[wrong.name] = wrong
    try:
        s = make()
        problem = compare(s, Field(), 1)
        if problem is not None:
            return "interpreter", problem.code
        t = trial(s)
        return t._run(t.source.text, 0)
    except (LoweringError, TensorIRError) as e:
        return "legality", e.code


def instructions(name: str) -> Iterator[tuple[str, Any]]:
    """The instructions of one type, each with a kernel that uses it."""
    m = MULTIPLICATIONS[name]
    for order in ORDERS:
        yield f"mma.m16n8k{m.k}.{name}.{order}", lambda order=order: product(name, order, 4 * m.k)
    for operand, which in (("a", 0), ("b", 1)):
        for how in "nt":
            if loads_rows(m, operand, how):
                order = next(o for o in ORDERS if o[which] == how)
                made = lambda order=order, operand=operand: product(name, order, 4 * m.k, operand)  # noqa: E731
                yield f"ldmatrix.{name}.{operand}.{how}", made
    for order in cuda_tiles.orders(m):
        yield cuda_tiles.instruction(m, order), lambda order=order: cuda_tiles.product(name, order)


def run_kernel(name: str, most: int | None = None, kinds: tuple[str, ...] = ()) -> list[Result]:
    """The fate of the mutants of one type's instructions. ``most``: of each instruction and kind."""
    out = []
    for called, make in instructions(name) if name in MULTIPLICATIONS else ():
        right = intrinsic(called)
        assert apart(lambda right=right, make=make: judge(right, make)) is None, (
            f"{called} is wrong before any mutation"
        )
        by_kind: dict[str, list[Wrong]] = {}
        for w in mutants(right):
            by_kind.setdefault(w.kind, []).append(w)
        for kind, found in by_kind.items():
            for w in sampled(found, most or OFTEN, f"{called} {kind}"):
                if kinds and not kind.startswith(kinds):
                    continue
                judged = apart(lambda w=w, make=make: judge(w.intrin, make))
                detector, code = ("emulator", judged) if isinstance(judged, str) else judged or ("", "")
                out.append(Result("tables", name, kind, w.place, detector, code))
    return out + _tiles(name, most, kinds)


def _tiles(name: str, most: int | None, kinds: tuple[str, ...]) -> list[Result]:
    """The fate of the mutants of how tiles lie, for products of warpgroups."""
    if name == cuda_tiles.LINED:
        return _of_orders("bf16", (cuda_tiles.LINED,), most, kinds, name)
    orders = cuda_tiles.orders(MULTIPLICATIONS[name])
    return _of_orders(name, (*orders, cuda_tiles.STRIDED) if orders else (), most, kinds, name)


def _of_orders(name: str, orders: tuple[str, ...], most: int | None, kinds: tuple[str, ...], called: str
               ) -> list[Result]:  # fmt: skip
    out = []
    for order in orders:
        by_kind: dict[str, list[cuda_tiles.Sided]] = {}
        for w in cuda_tiles.mutants(name, order):
            by_kind.setdefault(w.kind, []).append(w)
        often = MORE * {cuda_tiles.STRIDED: 2, cuda_tiles.LINED: 4}.get(order, 1)  # of three maps, one has them
        for kind, found in by_kind.items():
            for w in sampled(found, most or often, f"{name} {order} {kind}"):
                if kinds and not kind.startswith(kinds):
                    continue
                judged = apart(w.judge)
                detector, code = ("emulator", judged) if isinstance(judged, str) else judged or ("", "")
                out.append(Result("tables", called, kind, w.place, detector, code))
    return out


OFTEN = 1
"""Mutants of an instruction and kind."""
MORE = 3
"""Mutants of an order of operands and kind, of how tiles lie."""
