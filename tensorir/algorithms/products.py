"""Recognizers for algorithms: the single reduction of a definition, and the convolution that a reduction declares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.errors import Problem, ScheduleError
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dims import same_extent
from tensorir.ir.structure import among, identical
from tensorir.ir.text import show
from tensorir.ir.tree import Binary, Combiner, Const, Expr, Load, PadLoad, Reduce, Var

Read = Load | PadLoad
LAYOUTS = {"NCHW": ("nkpq", "nchw", "kcrs"), "NHWC": ("npqk", "nhwc", "krsc")}
"""Layout -> axes of result, image and filter of a convolution."""


def reduction_of(outputs: Sequence[Tensor], of: str | None, algorithm: str) -> Compute:
    """Return the compute of one tensor that is a reduction, no scan or scatter: the only one, or the one named ``of``.

    algorithm: name of the caller, for the message
    Raises ScheduleError ``redeclare.stage`` if there is none, or several without ``of``.
    """
    found = [
        op
        for op in computes_of(outputs)
        if len(op.bodies) == 1 and isinstance(op.bodies[0], Reduce) and op.bodies[0].part is None
    ]
    chosen = [op for op in found if of is None or op.name == of]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(op.name for op in found) or "none"
    message = f"{algorithm} is an algorithm for one reduction; {'' if of is None else f'{of!r} is not among '}{names}"
    hint = f"s.redeclare({algorithm!r}, of={found[-1].name!r}, …)" if found else ""
    raise ScheduleError(Problem("redeclare.stage", message, hint=hint))


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution of stride 1 with a square filter, recognized in one compute:

    result[n, k, p, q] = sum over c, r, s of image[n, c, p + r - pad[0], q + s - pad[1]] * filter[k, c, r, s]

    layout: "NCHW" with filters (k, c, r, s), or "NHWC" with (k, r, s, c)
    n, c, k, p, q, r: extents;  pad: rows and columns of zeros around the image
    """

    result: Tensor
    image: Tensor
    filter: Tensor
    layout: str
    n: int
    c: int
    k: int
    p: int
    q: int
    r: int
    pad: tuple[int, int]

    def pixel(self, n: Expr, h: Expr, w: Expr, c: Expr, inside: bool) -> Expr:
        """Return the image's element at row h and column w, counted from its padding; 0 outside of the image.

        inside: True if all accesses are inside the image, so that no padding is needed
        """
        at = dict(n=n, c=c, h=h - self.pad[0], w=w - self.pad[1])
        index = tuple(at[v] for v in LAYOUTS[self.layout][1])
        return self.image[index] if inside else self.image.get(*index, fill=0)

    def tap(self, k: Expr, c: Expr, r: Expr, s: Expr, inside: bool) -> Expr:
        """Return the filter's element; 0 for output channels beyond the last one, unless ``inside``."""
        at = dict(k=k, c=c, r=r, s=s)
        index = tuple(at[v] for v in LAYOUTS[self.layout][2])
        return self.filter[index] if inside else self.filter.get(*index, fill=0)


def convolution_of(op: Compute) -> Convolution | str:
    """Return the convolution that a compute declares, or as text the reason why it is unsupported.

    Supported: a float32 sum of image times filter, in either order, as of ``_Roles.convolution``.
    """
    body = op.bodies[0]
    if not isinstance(body, Reduce) or not _adds(body.combiner) or len(body.values) != 1:
        return f"{op.name} is no sum"
    value = body.values[0]
    if not isinstance(value, Binary) or value.op != "*" or not all(isinstance(e, Read) for e in (value.a, value.b)):
        return f"{op.name} is no sum of products of two elements"
    why = ""
    for image, weight in ((value.a, value.b), (value.b, value.a)):
        assert isinstance(image, Read)
        found = _Roles(op, body, image).convolution(weight)
        if not isinstance(found, str):
            return found
        why = why or found
    return why


def _adds(combiner: Combiner) -> bool:
    """True if a combiner is addition from 0, under any name."""
    result, start = combiner.result[0], combiner.identity[0]
    both = isinstance(result, Binary) and result.op == "+" and {result.a, result.b} == {*combiner.old, *combiner.new}
    return both and start.value == 0


class _Roles:
    """Matcher of a compute's axes to the roles n, c, h, w … by the index expressions of the image."""

    def __init__(self, op: Compute, body: Reduce, image: Read) -> None:
        self.op, self.body, self.image = op, body, image
        self.forms = _forms(image)

    def convolution(self, weight: Expr) -> Convolution | str:
        """Convolution of this image with filter ``weight``, or as text the reason why it is unsupported.

        Supported: float32, stride 1, dilation 1, a square filter, padding with zeros, result and image in one layout.
        """
        name = self.image.buffer.name
        if self.body.dtype != "float32" or len(self.op.axes) != 4 or len(self.body.axes) != 3 or len(self.forms) != 4:
            return (f"{self.op.name} has {len(self.op.axes)} axes of {self.body.dtype} and reduces over "
                    f"{len(self.body.axes)}, a convolution has 4 of float32 and 3")  # fmt: skip
        for layout in LAYOUTS:
            axes = self._axes(layout)
            if axes is None:
                continue
            if why := self._unlike(axes, layout, weight):
                return why
            return self._made(axes, layout, weight)
        read = ", ".join(map(show, self.image.index))
        return f"{name} is read at [{read}], a convolution reads [n, c, p + r, q + s] or [n, p + r, q + s, c]"

    def _axes(self, layout: str) -> dict[str, Var] | None:
        """Role -> axis for n, c, p, r, q, s if the image has this layout; None if not."""
        at = dict(zip(LAYOUTS[layout][1], self.forms, strict=True))
        own, reduced = set(self.op.axes), set(self.body.axes)
        found: dict[str, Var] = {}
        for dim, names in (("n", "n"), ("c", "c"), ("h", "pr"), ("w", "qs")):
            terms = [t for t in at[dim].terms if isinstance(t, Var)]
            if len(terms) != len(at[dim].terms) or len(terms) != len(names):
                return None
            for v in names:
                fitting = [t for t in terms if t in (own if v in "npq" else reduced)]
                if len(fitting) != 1:
                    return None
                found[v] = fitting[0]
            if dim in "nc" and (at[dim].constant or at[dim].terms[terms[0]] != 1):
                return None
        return found if len(set(found.values())) == len(found) else None

    def _unlike(self, axes: dict[str, Var], layout: str, weight: Expr) -> str:
        """Reason why a matched convolution is unsupported (stride, dilation, fill, layout, filter), as text; "" if it
        is supported.
        """
        at = dict(zip(LAYOUTS[layout][1], self.forms, strict=True))
        for what, over in (("stride", {"h": "p", "w": "q"}), ("dilation", {"h": "r", "w": "s"})):
            for dim, v in over.items():
                if (step := at[dim].terms[axes[v]]) != 1:
                    return f"{self.op.name} is a convolution of {what} {step}"
        if isinstance(self.image, PadLoad) and not _is_zero(self.image.fill):
            return f"{self.image.buffer.name} is read with {show(self.image.fill)} beyond its ends, not with zeros"
        if not same_extent(axes["r"].extent, axes["s"].extent):
            return f"{self.op.name} has a filter of {axes['r'].extent} x {axes['s'].extent}, not a square one"
        (channel,) = set(self.op.axes) - {axes[v] for v in "npq"}
        places = {**axes, "k": channel}
        if not identical([places[v] for v in LAYOUTS[layout][0]], self.op.axes):
            return f"the result of {self.op.name} is not in the layout of its image, {layout}"
        assert isinstance(weight, Read)
        taps = _forms(weight)
        if not isinstance(weight, Load) or not _is(taps, [places[v] for v in LAYOUTS[layout][2]]):
            return f"{weight.buffer.name} is not read as a filter [{', '.join(LAYOUTS[layout][2])}]"
        return ""

    def _made(self, axes: dict[str, Var], layout: str, weight: Expr) -> Convolution:
        assert isinstance(weight, Load)
        sizes = dict(zip(self.op.axes, self.op.extents, strict=True))
        at = dict(zip(LAYOUTS[layout][1], self.forms, strict=True))
        image, apart = _unpadded(self.image, LAYOUTS[layout][1])
        (k,) = (n for v, n in sizes.items() if not among(v, axes.values()))
        return Convolution(
            self.op.outputs[0], image, weight.buffer.origin, layout, sizes[axes["n"]], int(axes["c"].extent), k,
            sizes[axes["p"]], sizes[axes["q"]], int(axes["r"].extent),
            (apart[0] - at["h"].constant, apart[1] - at["w"].constant),
        )  # fmt: skip


def _forms(read: Read) -> list[Linear]:
    """Indices of a load as linear forms; without ranges, since these would simplify axes of extent 1 to 0."""
    arith = Arith()
    return [arith.linear(i) for i in read.index]


def _is(forms: Sequence[Linear], axes: Sequence[Var]) -> bool:
    """True if the indices are exactly these axes, one each."""
    return len(forms) == len(axes) and all(
        f.terms == {v: 1} and not f.constant for f, v in zip(forms, axes, strict=True)
    )


def _unpadded(read: Read, dims: str) -> tuple[Tensor, tuple[int, int]]:
    """(image, (rows, columns) of zero padding) of a tensor that only pads an image; (the tensor itself, (0, 0)) for
    others.
    """
    tensor: Tensor = read.buffer.origin
    op = tensor.op
    inner = op.bodies[0] if op is not None and len(op.bodies) == 1 else None
    if op is None or isinstance(read, PadLoad) or not isinstance(inner, PadLoad) or not _is_zero(inner.fill):
        return tensor, (0, 0)
    forms = _forms(inner)
    shifted = {d: f.constant for d, f in zip(dims, forms, strict=True)} if len(forms) == len(dims) else {}
    plain = [Linear(f.terms, 0) for f in forms]
    if not shifted or not _is(plain, op.axes) or shifted["n"] or shifted["c"]:
        return tensor, (0, 0)
    return inner.buffer.origin, (-shifted["h"], -shifted["w"])


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
