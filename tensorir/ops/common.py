"""Common code of operators: epilogues, checks of parameters, templates from rules, activations in NumPy."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir import nn
from tensorir.automatic.facts import Wishes
from tensorir.engines.problems import PRECISIONS, TileProblem, result_type
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_bool, need_choice, shown
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import is_float
from tensorir.ir.tree import Expr
from tensorir.target import Target
from tensorir.tune.template import OneByOne, Template, Templates, need_rule

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule
    from tensorir.tune.space import Space

Config = Mapping[str, Any]


def epilogue(c: Tensor, p: TileProblem, axis: int, bias: Tensor | None = None, alpha: Expr | None = None,
             d: Tensor | None = None, beta: Expr | None = None) -> Tensor:  # fmt: skip
    """``act(alpha * c + beta * d + bias)`` of sums ``c`` (``nn.bias_act``, ``p.act``) as stage "out".

    float32 sums of narrower operands: stage "epilogue", then "out" converts to ``result_type(p.dtype)``. ``c`` itself
    if nothing is to be done.
    """
    converts = p.wide == "float32"
    name = "epilogue" if converts else "out"
    out = nn.bias_act(c, bias, p.act, axis=axis, name=name, alpha=alpha, d=d, beta=beta)
    return nn.convert(out, result_type(p.dtype), name="out") if converts else out


def positive(params: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise DeclarationError ``ops.extent`` unless each named parameter is an int >= 1."""
    for name in names:
        v = params[name]
        if isinstance(v, bool) or not isinstance(v, int) or v < 1:
            raise refuse(DeclarationError, "ops.extent", f"{name}={shown(v)} must be an int >= 1")


def need_precision(op: str, precision: str, dtype: str) -> None:
    """Raise DeclarationError ``argument.value`` unless ``precision`` is one of ``PRECISIONS``, ``<op>.precision``
    unless it is "fp32" or ``dtype`` is float32.
    """
    need_choice("precision", precision, PRECISIONS)
    if precision != "fp32" and dtype != "float32":
        message = f"precision={precision!r} is of products of float32, not of {dtype}"
        raise refuse(DeclarationError, f"{op}.precision", message, hint="precision='fp32', or dtype='float32'")


def added_type(dtype: str) -> str:
    """dtype of bias and residual: the result's type for float results, else the operands' type."""
    return result_type(dtype) if is_float(dtype) else dtype


def out_dtype(dtype: str, act: str | None = None) -> Any:
    """NumPy dtype of the reference's result: the declared one; float64 for integers with an activation other than
    relu.
    """
    from tensorir.interp.numbers import numpy_dtype

    kind = result_type(dtype)
    return numpy_dtype(kind if act in (None, "relu") or is_float(kind) else "float64")


Named = Iterable[tuple[str, Template]]
"""(name, template) pairs."""


TILED = {"tile", "rows", "terms", "tensor", "winograd"}
"""Words in names of templates made for products and convolutions."""


def tiled(out: Tensor, wishes: Wishes, known: Sequence[str] = ()) -> Templates:
    """Templates of ``out`` from rules that tile, or reduce rows or terms; all templates of rules if there are none.

    known: names of CPU templates that are created without running rules, to load kernels of theirs
    """
    ruled = Ruled(out, wishes)
    kinds = {kind: functools.partial(ruled.tiled, kind) for kind in ("cpu", "gpu")}
    return Templates({}, kinds, lambda: {name: ruled.later(name) for name in known}, other=ruled.named)


class Ruled:
    """Templates that rules make for a definition, by target or by kind of target ("cpu", "gpu").

    words: kind -> words one of which a template's name must contain; ``TILED`` by default
    """

    def __init__(self, out: Tensor, wishes: Wishes, words: Mapping[str, set[str]] | None = None) -> None:
        self.out, self.wishes, self.words = out, wishes, words or {}
        self._tiled = dict[tuple[str, Target | None, str], Mapping[str, Template]]()

    @functools.cached_property
    def _made(self) -> Callable[[str, Target | None], Mapping[str, Template]]:
        from tensorir.automatic.plan import FULL_TARGETS, templates_of  # all rules, which loading has no use for

        on = templates_of((self.out,), self.wishes)
        return lambda kind, target: on(target or FULL_TARGETS[kind])

    def tiled(self, kind: str, target: Target | None = None) -> Mapping[str, Template]:
        """Name -> template for a target (None: any target of the kind), restricted to names with a word of ``words``;
        all templates if no name has one. Made lazily, cached per target.
        """
        key = kind, target, target.name if target else ""
        if key not in self._tiled:
            self._tiled[key] = self._suiting(self.words.get(kind, TILED), self._made(kind, target))
        return self._tiled[key]

    def named(self, name: str) -> Template | None:
        """Template ``name`` of the rules for any target of its kind, the prefix "cpu" or "gpu"; None if there is
        none.
        """
        kind = name.partition("_")[0] if isinstance(name, str) else ""
        return self._made(kind, None).get(name) if kind in ("cpu", "gpu") else None

    @staticmethod
    def _suiting(words: set[str], found: Mapping[str, Template]) -> Mapping[str, Template]:
        def suits(name: str) -> bool:
            return not words.isdisjoint(name.split("_"))

        each = functools.partial(those, suits, found)

        def named(name: str) -> Template | None:
            return found.get(name) if suits(name) or not suits(next(iter(each()))[0]) else None

        return OneByOne(each, named)

    def later(self, name: str, approximate: bool = False) -> Template:
        """CPU template of name ``name`` that runs the rules when it first schedules, or when its space is needed."""

        def schedule(s: BaseSchedule, config: Config) -> Any:
            return self._on_cpu(name, s.target).function(s, dict(config))

        def space(target: Target) -> Space:
            return self._on_cpu(name, target).space_for(target)

        return Template(schedule, space, ("cpu",), approximate)

    def _on_cpu(self, name: str, target: Target) -> Template:
        """Template ``name`` that the rules make for CPU ``target``. Raises ScheduleError ``template.target`` if they
        make none.
        """
        return need_rule(self.tiled("cpu", target), name, self.out.name, target)


def those(wanted: Callable[[str], bool], templates: Mapping[str, Template]) -> Named:
    """(name, template) pairs whose name ``wanted`` accepts; all pairs if it accepts no name."""
    found = (named for named in templates.items() if wanted(named[0]))
    first = next(found, None)
    return templates.items() if first is None else itertools.chain([first], found)


def fastest(templates: Named, target: Target) -> str:
    """Name of the template whose start has the least modelled time; those without model or start count as infinite."""
    found = dict(templates)
    return min(found, key=lambda name: _expected(found[name], target))


def _expected(template: Template, target: Target) -> float:
    space = template.started(target)
    return math.inf if space is None or space.expected_s is None else space.expected_s(space.default)


def flags(params: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise DeclarationError unless each named parameter is True or False; 0, 1 and arrays are refused."""
    for name in names:
        need_bool(name, params[name])


def exact(dtype: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays of dtype ``dtype`` converted for a reference: floats to float64, integers to int64."""
    return [np.asarray(x).astype(np.float64 if is_float(dtype) else np.int64) for x in arrays]


_ACTIVATIONS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {
    None: lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "silu": lambda y: y / (1 + np.exp(-y)),
    "sigmoid": lambda y: 1 / (1 + np.exp(-y)),
    "tanh": np.tanh,
    "gelu": lambda y: y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2))),
}


def activate(y: np.ndarray, act: str | None) -> np.ndarray:
    """Activation ``act`` of ``y`` in NumPy; None is the identity."""
    with np.errstate(over="ignore"):  # far below 0: 1 / inf is 0
        return np.asarray(_ACTIVATIONS[act](y))
