"""``Work``: a computation for one set of shapes with its templates, as data."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tensorir.api.operator import Operator, Origin
from tensorir.automatic.facts import Wishes
from tensorir.check.tolerance import tolerance
from tensorir.codec import Json
from tensorir.errors import DeclarationError, Problem, ScheduleError, TensorIRError, refuse
from tensorir.errors.habits import answering, meant
from tensorir.errors.handles import Handle
from tensorir.errors.needs import (
    need_function,
    need_int,
    need_mapping,
    need_number,
    need_text,
    shown,
    wrong,
)  # fmt: skip
from tensorir.errors.shown import Shown, few_lines
from tensorir.expr.program import as_outputs, computes_of, inputs_of, scalars_of, terms_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.structure import identical
from tensorir.ir.text import said
from tensorir.ir.tree import Binary, Call, Reduce, Var
from tensorir.ir.visit import find
from tensorir.runtime.host import target_here
from tensorir.target import Target
from tensorir.tune.template import Template, Templates, found_on, suiting, template_on

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.export.program import ExportProgram


@answering(DeclarationError)
class Work(Handle, Shown):
    """A workload as data: what is computed, and how templates schedule it; ``Workload`` adds tuning and loading."""

    def __init__(
        self,
        name: str,
        outputs: Tensor | Sequence[Tensor],
        templates: Mapping[str, Any] | None = None,
        reference: Callable[..., object] | None = None,
        *,
        flops: float | None = None,
        baselines: Mapping[str, Callable[..., object]] | None = None,
        max_error: float | None = None,
        parameters: Mapping[str, object] | None = None,
        origin: Origin | tuple[Any, ...] | None = None,
        operator: Operator | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip() or len(name) > 1000:
            raise refuse(DeclarationError, "workload.name", f"a workload's name is a short text, not {shown(name)}")
        if templates is None:
            ruled = functools.partial(_automatic, outputs, 0.0 if max_error is None else max_error)
            templates = Templates({}, {kind: functools.partial(ruled, kind) for kind in ("cpu", "gpu")})
        if not isinstance(templates, Templates) and (not isinstance(templates, Mapping) or not templates):
            raise refuse(DeclarationError, "workload.template", "a workload needs at least one template")
        self.name = name
        self._outputs = outputs
        self.outputs = as_outputs(outputs)
        self.max_error = None if max_error is None else need_number("max_error", max_error, 0)
        self.templates: MutableMapping[str, Template]
        if isinstance(templates, Templates):
            self.templates = templates.copy()
        else:
            self.templates = {str(n): Template.of(n, t) for n, t in templates.items()}
        self.inputs: tuple[Tensor | Var, ...] = _arguments(self.outputs)
        self._reference = None if reference is None else need_function("reference", reference)
        self._flops = None if flops is None else need_number("flops", flops, 0)
        self.baselines = {n: need_function(f"baselines[{n!r}]", f) for n, f in _named("baselines", baselines).items()}
        made = Origin(*origin) if isinstance(origin, tuple) and 2 <= len(origin) <= 4 else origin
        if not isinstance(made, Origin | None):
            raise wrong("origin", origin, "an Origin, or (kind, name, options, place)")
        self.origin, self.operator = made, operator
        self._key: tuple[Any, ...] | None = None  # of the definition, once a template has declared its own
        self._parameters = None if parameters is None else _named("parameters", parameters)

    def __copy__(self) -> Self:
        made = super().__copy__()
        made.templates, made.baselines = copy(self.templates), dict(self.baselines)
        return made

    def _data(self) -> tuple[Any, ...]:
        return super()._data() if self.origin is None or self.origin.kind == "file" else (Origin.make, (self.origin,))

    @property
    def parameters(self) -> dict[str, object]:
        """Parameters as given, or arguments of the function that made the workload."""
        if self._parameters is None and self.origin is not None:
            return dict(self.origin.options)
        return dict(self._parameters or {})

    @property
    def usual(self) -> dict[str, Any]:
        """{parameter: default} of the operator's function, ``inspect.Parameter.empty`` for one without a default; {}
        for workloads of no operator.
        """
        if self.operator is None:
            return {}
        function = getattr(sys.modules[self.operator.module], self.operator.name)
        return {k: v.default for k, v in inspect.signature(function).parameters.items()}

    @property
    def title(self) -> str:
        """Name and parameters in one line, as in logs: ``conv2d n=1 c=64 …``."""
        words = [f"{k}={_word(v)}" for k, v in self.parameters.items()]
        return " ".join([self.name, *words])

    def __repr__(self) -> str:
        return few_lines(f"Workload({self.title})")

    # --- values

    def reference(self, *arrays: object) -> Any:
        """The outputs in NumPy, by the user's reference or else from the declarations: an array, or a tuple of them
        when there are several outputs.

        Raises DeclarationError ``workload.arguments`` for another number of arrays, or one of another shape or kind.
        """
        if len(arrays) != len(self.inputs):
            wanted = ", ".join(a.name for a in self.inputs)
            message = f"{self.name} takes {len(self.inputs)} arguments ({wanted}), got {len(arrays)}"
            raise refuse(DeclarationError, "workload.arguments", message)
        for a, x in zip(self.inputs, arrays, strict=True):
            _check_array(a, x)
        if self._reference is not None:
            return self._reference(*arrays)
        from tensorir.interp.reference import evaluate

        made = evaluate(self.outputs, arrays)
        return made[0] if len(made) == 1 else made

    def random_inputs(self, seed: int = 0) -> list[Any]:
        """Arrays for the arguments in order: normal floats, small integers, indices in range; the same for one seed."""
        from tensorir.tune.inputs import arguments, random_arrays

        return random_arrays(arguments(self.outputs)[0], need_int("seed", seed, 0))

    @property
    def flops(self) -> float:
        """Floating-point (or integer) operations of one run, as given or as the declarations count them."""
        return float(self._flops) if self._flops is not None else estimated_flops(self.outputs)

    def allowed_error(self, template: str) -> float | None:
        """The tolerance of ``template`` relative to the largest output: ``max_error``, or the type's rounding without
        one; None for templates that are not approximate, exact on whole numbers.

        Raises ScheduleError ``template.unknown``.
        """
        if need_text("template", template, ScheduleError) not in self.templates:
            raise self._no_template(template)
        if not self.templates[template].approximate:
            return None
        return tolerance(self.outputs[0].dtype) if self.max_error is None else self.max_error

    # --- schedules

    def template_for(self, target: str | Target, template: str | None = None) -> str:
        """The name of the template to use: ``template`` if it suits the target; if None, the first that suits and has a
        legal configuration, or else the first that suits.

        Raises ScheduleError ``template.unknown``, and ``template.target`` if it or all of them do not suit.
        """
        wanted = target_here(target)
        kind = wanted.kind
        if template is not None:
            need_text("template", template, ScheduleError)
        if template is None:
            first = None
            for name, found in suiting(self.templates, wanted):
                if found.started(wanted) is not None:  # filters of 11 x 11 may be too large for shared memory
                    return name
                first = first or name
            if first is not None:
                return first
        elif self._suits(template, wanted):
            return template
        others = [n for n, _ in suiting(self.templates, wanted)]
        if template is None:
            message = f"{self.name} has no template for a {kind}"
        elif template not in self.templates:
            raise self._no_template(template)
        else:
            written = self.templates[template].targets
            message = f"template {template!r} of {self.name} is written for {written} targets, not for {wanted.text}"
        hint = f"one of {', '.join(others)}" if others else ""
        raise ScheduleError(Problem("template.target", message, hint=hint))

    def _no_template(self, template: str) -> TensorIRError:
        message = f"{self.name} has no template {shown(template)}"
        return ScheduleError(Problem("template.unknown", message, hint=meant("template", template, self.templates)))

    def _suits(self, template: str, target: Target) -> bool:
        """True if a template of this name is written for ``target``."""
        found = found_on(self.templates, template, target)
        return found is not None and found.suits(target)

    def schedule(
        self, config: Mapping[str, object] | None = None, template: str | None = None, target: str | Target = "opencl"
    ) -> Schedule:
        """The schedule that a template makes for one configuration of its space (its default when None).

        Raises DeclarationError ``space.illegal`` where constraints of the space refuse the configuration, ScheduleError
        ``template.result`` if the template returns neither a Schedule nor None, errors of ``template_for``, and
        whatever the template's function raises.

        A definition that a template declares itself is compared with the workload's definition at sampled elements, in
        exact arithmetic, once for all configurations that declare the same; ``template.definition`` where it differs.

        target: plain "opencl" is this machine's processor, for which configurations are recorded here; with limits
                ("opencl -registers=16 -vector_bytes=32") the result is the same on every machine
        """
        from tensorir.api.schedule import Schedule

        parsed = target_here(target)
        name = self.template_for(parsed, template)
        chosen = template_on(self.templates, name, parsed)
        space = chosen.space_for(parsed)
        values = space.default if config is None else space.accept(config)
        s = Schedule(self._outputs, parsed)
        s._workload = self
        made = chosen.function(s, dict(values))
        if made is None:
            return s
        if not isinstance(made, Schedule):
            message = f"the template of {self.name} returned {type(made).__name__}, not a Schedule (or nothing)"
            raise ScheduleError(Problem("template.result", message))
        made._workload = self
        if not identical(made.outputs, self.outputs):
            self._need_same(made, name)
        return made

    def _default_part(self, target: Target) -> ExportProgram:
        """The program of the default configuration for a target, to export."""
        name = self.template_for(target)
        config = template_on(self.templates, name, target).space_for(target).default
        s = self.schedule(config, template=name, target=target)
        about = {"template": name, "config": dict(config), "record": None}
        return self._tested(replace(s._part_as(s.emitted(target), target), about=about), name, s._again)

    def _tested(self, made: ExportProgram, template: str, again: Callable[[str], ExportProgram]) -> ExportProgram:
        """``made`` with test data and tolerance from the reference."""
        return replace(made, reference=self.reference, max_error=self.allowed_error(template), again=again)

    def _need_same(self, made: Schedule, template: str) -> None:
        """Raise ScheduleError ``template.definition`` if a schedule's declarations differ in meaning from the
        workload's; else set its ``definition`` and ``allowed_error`` to the workload's.
        """
        from tensorir.check.definition import differs_as_class, key_of

        if self._key is None:
            self._key = key_of(self.outputs)
        most = self.allowed_error(template)
        error = made.inexact_by if identical(made.began_with, self.outputs) else most
        if why := differs_as_class(self.outputs, made.outputs, error, self._key):
            message = f"template {template!r} of {self.name} declares another computation: {why}"
            hint = "schedule the s that the template is given, or declare what the workload computes"
            raise ScheduleError(Problem("template.definition", message, hint=hint))
        made.definition, made.allowed_error = self.outputs, most


def _check_array(a: Tensor | Var, given: Any) -> None:
    import numpy as np

    shape = a.shape if isinstance(a, Tensor) else ()
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.empty(0, object)
    fits = len(array.shape) == len(shape) and all(
        m == n for m, n in zip(array.shape, shape, strict=True) if isinstance(n, int)
    )
    if not fits or array.dtype.kind not in "biufV":  # V: types of ml_dtypes
        message = f"{a.name} must be numbers of shape {_shown(shape)}, not {shown(given)}"
        raise refuse(DeclarationError, "workload.arguments", message)


def _shown(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(str(said(n)) for n in shape)}{',' * (len(shape) == 1)})"


def _named(name: str, given: Any) -> Json:
    return {} if given is None else dict(need_mapping(name, given))


def _arguments(outputs: Sequence[Tensor]) -> tuple[Tensor | Var, ...]:
    found: list[Tensor | Var] = [*inputs_of(outputs), *scalars_of(outputs)]
    return tuple(sorted(found, key=lambda a: a.order))


def _word(value: Any) -> str:
    return str(value).replace(" ", "") if not isinstance(value, bool) else str(int(value))


def estimated_flops(outputs: Sequence[Tensor]) -> float:
    """Number of arithmetic operations on values, not on indices, in the declarations: each of ``+ - * / min max``, each
    call (exp, …) and each reduced term counts as one.
    """
    total = 0.0
    for op in computes_of(outputs):
        for body in dict.fromkeys(op.bodies):
            count = sum(1 for e in find(body, Binary) if _counts(e)) + len(find(body, Call))
            work, count = terms_of(op, body), count + isinstance(body, Reduce)
            total += float(work) * count
    return total


def _counts(e: Binary) -> bool:
    return e.op in ("+", "-", "*", "/", "min", "max") and e.dtype != "index"


def _automatic(
    outputs: Tensor | Sequence[Tensor], max_error: float, kind: str, target: Target | None
) -> Mapping[str, Template]:
    from tensorir.automatic.plan import FULL_TARGETS, templates_of  # all rules, which loading has no use for

    return templates_of(as_outputs(outputs), Wishes(max_error=max_error))(target or FULL_TARGETS[kind])
