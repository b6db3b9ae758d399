"""Recognizer of 2-D convolutions and their gradients among reductions: roles of the axes (image, channel, pixel, tap).

    y[n, k, p, q]  += x[n, c, p*stride + r*dilation, q*stride + s*dilation] * w[k, c, r, s]
    dw[k, c, r, s] += dy[n, k, p, q] * x[n, c, p*stride + r*dilation, q*stride + s*dilation]
    dx[n, c, h, w] += dy_spread[n, k, h - r*dilation + …, w - s*dilation + …] * w[k, c, r, s]

or with the channels last; in groups, channel c of the image is k/kg*cg + c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tensorir.arith.affine import Arith
from tensorir.arith.linear import Linear
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.rules.conv_part import ConvStages
from tensorir.automatic.rules.matrix_view import multiplies
from tensorir.automatic.rules.product_view import short
from tensorir.engines.problems import Conv
from tensorir.ir.build import as_int
from tensorir.ir.dims import most
from tensorir.ir.structure import identical
from tensorir.ir.tree import Binary, Const, Expr, Iter, Load, Update, Var
from tensorir.ir.visit import find

ORDERS: Mapping[str, Mapping[str, str]] = {
    "NCHW": {"x": "nchw", "w": "kcrs", "y": "nkpq"},
    "NHWC": {"x": "nhwc", "w": "krsc", "y": "npqk"},
}
"""Layout -> axes of image x, filter w and result y, in order."""
MOVED_OPS = 4
"""Maximum operations on values of a stage that only moves an image: zeros around it, or between its pixels."""


@dataclass(frozen=True)
class ConvView:
    """A reduction recognized as a convolution ("y") or its gradient with respect to the image ("x") or the filter
    ("w").

    names: the stage that pads or spreads the image, if the reduction is its only reader
    """

    made: Literal["x", "w", "y"]
    shape: Conv
    stages: ConvStages
    names: list[str]


def conv_view(graph: Graph, anchor: Nest, total: Nest) -> ConvView | None:
    """The convolution that the reduction ``total`` declares; None if it is none, or if strides, dilations or borders of
    rows differ from those of columns.
    """
    loads = {x.buffer: x for x in total.loads if x.buffer not in total.writes}
    updates = find(total.stage.body, Update)
    shapes = len(total.spatial), len(total.reduced), len(loads), len(updates)
    if not total.constant or shapes != (4, 3, 2, 1) or not multiplies(total):
        return None
    first, second = loads.values()
    if first.buffer.dtype != second.buffer.dtype or any(len(x.index) != 4 for x in loads.values()):
        return None
    for a, b in ((first, second), (second, first)):
        for layout in ORDERS:
            for found in (_forward(total, a, b, layout, "y"), _forward(total, a, b, layout, "w"),
                          _image_gradient(total, a, b, layout)):  # fmt: skip
                if found is not None:
                    return found.view(graph, anchor)
    return None


@dataclass(frozen=True)
class _Found:
    """Candidate of ``conv_view``: axes by role letter, the load under the taps, the other load, and (stride, dilation)
    of rows and columns.
    """

    total: Nest
    made: Literal["x", "w", "y"]
    layout: str
    axes: Mapping[str, Iter]
    image: Load
    other: Load
    groups: int
    steps: tuple[tuple[int, int], tuple[int, int]]

    def size(self, letter: str) -> int:
        """Extent of the axis with role ``letter``."""
        return most(self.axes[letter].extent)

    def view(self, graph: Graph, anchor: Nest) -> ConvView | None:
        """The ``ConvView`` of this candidate, with the stage that moves the image; None if rows and columns differ."""
        if self.steps[0] != self.steps[1]:
            return None
        total, given = self.total, self.image.buffer
        stage = next((n for n in graph.producers(total) if given in n.writes and _moves(graph, n, total)), None)
        source = given.shape
        if stage is not None and len(stage.loads) == 1 and len(stage.loads[0].index) == 4:
            source = stage.loads[0].buffer.shape
        stored = dict(zip(ORDERS[self.layout]["x"], map(most, source), strict=True))
        shape = self._shape(stored, anchor)
        if self.made == "x" and stage is not None:
            (stride, top), (other, left) = _spread(stage, self.layout)
            pads = top + (shape.r - 1) * shape.dilation, left + (shape.s - 1) * shape.dilation
            if stride != other or (stride > 1 and pads[0] != pads[1]):
                return None
            shape = replace(shape, stride=stride, pad=pads[0] if stride > 1 else 0)
        named = {letter: short(total, it) for letter, it in self.axes.items()}
        spatial, reduced = ([short(total, it) for it in group] for group in (total.spatial, total.reduced))
        turned = {named[v] for v in "rs"} if self.made == "x" else set()
        walk = f"{', '.join(spatial)} | {', '.join(f'-{v}' if v in turned else v for v in reduced)}"
        out = anchor.name if anchor is not total else ""
        shared = not out and not graph.is_output(total)
        of = ConvStages(total.name, out, given.name, self.other.buffer.name, stage is not None, shared, walk, named)
        return ConvView(self.made, shape, of, [stage.name] if stage else [])

    def _shape(self, stored: Mapping[str, int], anchor: Nest) -> Conv:
        ((stride, dilation), _), size, back = self.steps, self.size, self.made == "x"
        under = stored["h"], stored["w"]
        h, w = (size("h"), size("w")) if back else under
        p, q = under if back else (size("p"), size("q"))
        return Conv(
            n=size("n"), c=size("c") * (1 if back else self.groups), h=h, w=w,
            k=size("k") * (self.groups if back else 1), r=size("r"), s=size("s"), p=p, q=q,
            stride=stride, dilation=dilation, groups=self.groups, layout=self.layout,
            dtype=self.other.buffer.dtype, result=anchor.writes[0].dtype,
        )  # fmt: skip


def _named(letters: str, axes: Sequence[Iter | None]) -> dict[str, Iter] | None:
    """Role letter -> axis; None if an axis is missing or occurs twice."""
    found = {letter: it for letter, it in zip(letters, axes, strict=True) if it is not None}
    return found if len(found) == len(letters) == len({it.var for it in found.values()}) else None


def _forward(total: Nest, image: Load, other: Load, layout: str, made: Literal["w", "y"]) -> _Found | None:
    """Match ``total`` as a convolution ("y") or filter gradient ("w"); None if it is none."""
    order, every = ORDERS[layout], {it.var: it for it in total.stage.iters}
    met = _named(
        order["y" if made == "w" else "w"], [every.get(i) if isinstance(i, Var) else None for i in other.index]
    )
    own = _named(order[made], total.spatial)
    if met is None or own is None or met["k"] is not own["k"]:
        return None
    axes = {**met, **own}
    if len({it.var for it in axes.values()}) != 7:
        return None
    at = dict(zip(order["x"], map(Arith().linear, image.index), strict=True))
    groups = _groups(at["c"], axes["k"], axes["c"])
    rows, columns = (_steps(at[v], axes[x], axes[t]) for v, x, t in ("hpr", "wqs"))
    alone = at["n"].terms == {axes["n"].var: 1} and not at["n"].constant
    if not (alone and groups and rows and columns):
        return None
    return _Found(total, made, layout, axes, image, other, groups, (rows, columns))


def _image_gradient(total: Nest, image: Load, other: Load, layout: str) -> _Found | None:
    """Match ``total`` as an image gradient; its stride is read later from the stage that spreads dy. None if it is
    none.
    """
    order = ORDERS[layout]
    own = _named(order["x"], total.spatial)
    if own is None:
        return None
    taps = dict(zip(order["w"], other.index, strict=True))
    at = dict(zip(order["x"], image.index, strict=True))
    groups, c = 1, own["c"]
    if isinstance(taps["c"], Binary):  # channel c of the image is the one of its group
        inner = taps["c"]
        if inner.op != "%" or inner.a is not c.var or not isinstance(inner.b, Const):
            return None
        groups = most(c.extent) // as_int(inner.b)
    elif taps["c"] is not c.var:
        return None
    reduced = {it.var: it for it in total.reduced}
    r, s = (reduced.get(t) if isinstance(t, Var) else None for t in (taps["r"], taps["s"]))
    met = _named("krs", [next((it for it in total.reduced if it not in (r, s)), None), r, s])
    if met is None or not identical([taps["k"]], [at["c"]]) or at["n"] is not own["n"].var:
        return None
    channel = Arith().linear(taps["k"])
    if groups == 1:
        fits = channel.terms == {met["k"].var: 1} and not channel.constant
    else:
        fits = _groups(channel, c, met["k"]) == groups
    axes = {**met, **own}
    steps = [_steps(Arith().linear(at[v]), axes[v], axes[t], turned=True) for v, t in ("hr", "ws")]
    if not fits or None in steps:
        return None
    rows, columns = (x for x in steps if x is not None)
    return _Found(total, "x", layout, axes, image, other, groups, (rows, columns))


def _groups(channel: Linear, outer: Iter, inner: Iter) -> int:
    """Number of groups if ``channel`` has the form outer/each*many + inner, 1 if it is inner; 0 for other forms."""
    terms = dict(channel.terms)
    if terms.pop(inner.var, 0) != 1 or channel.constant:
        return 0
    if not terms:
        return 1
    ((atom, many),) = terms.items() if len(terms) == 1 else ((Const(0, "index"), 0),)
    if not isinstance(atom, Binary) or atom.op != "//" or atom.a is not outer.var or not isinstance(atom.b, Const):
        return 0
    groups, rest = divmod(most(outer.extent), as_int(atom.b))
    return groups if not rest and many == most(inner.extent) else 0


def _steps(place: Linear, pixel: Iter, tap: Iter, turned: bool = False) -> tuple[int, int] | None:
    """(stride, dilation) if ``place`` has the form pixel*stride + tap*dilation; None for other forms.

    turned: True if taps are counted backwards
    """
    terms, last = dict(place.terms), most(tap.extent) - 1
    stride, dilation = terms.pop(pixel.var, 0), terms.pop(tap.var, 0) * (-1 if turned else 1)
    if terms or stride < 1 or dilation < 1 or place.constant != (last * dilation if turned else 0):
        return None
    return stride, dilation


def _moves(graph: Graph, nest: Nest, total: Nest) -> bool:
    """True if the stage ``nest`` only pads or spreads an array that nothing but ``total`` reads."""
    cheap = nest.kind == "map" and not nest.calls and nest.values <= MOVED_OPS and len(nest.writes) == 1
    return cheap and len(nest.spatial) == 4 and graph.readers(nest) == [total] and not graph.is_output(nest)


def _spread(nest: Nest, layout: str) -> list[tuple[int, int]]:
    """(stride, start) of rows and of columns: the stage puts zeros between rows, except where (row + start) % stride ==
    0; (1, 0) if it puts none.
    """
    found = dict[Expr, tuple[int, int]]()
    for e in find(nest.stage.body, Binary):
        if e.op == "%" and isinstance(e.b, Const):
            place = Arith().linear(e.a)
            found.update(dict.fromkeys(place.terms, (as_int(e.b), place.constant)))
    axes = (nest.spatial[ORDERS[layout]["x"].index(v)].var for v in "hw")
    return [found.get(v, (1, 0)) for v in axes]
