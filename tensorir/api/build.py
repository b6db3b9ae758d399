"""From a schedule to something that runs. What emits is imported when it is used: a loaded kernel needs none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.codegen.source import GatherRange, Source
from tensorir.errors import LaunchError, Problem
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.needs import need_int
from tensorir.errors.shown import Shown, few_lines
from tensorir.runtime.call import by_name
from tensorir.runtime.device import Device
from tensorir.runtime.launch import BoundLaunch, Program
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.api.near import Near
    from tensorir.api.schedule import Schedule
    from tensorir.export.part import Part
    from tensorir.expr.tensor import Tensor
    from tensorir.runtime.timing import Timing


def emit_source(s: Schedule, target: Target) -> Source:
    """Lower and print ``s`` for ``target``."""
    from tensorir.codegen.cfamily import emit
    from tensorir.lower.pipeline import lower

    return emit(lower(s.program, target), target, str(s.trace).splitlines(), gathers_of(s))


def gathers_of(s: Schedule) -> tuple[GatherRange, ...]:
    """The index inputs whose values must be checked at launch, by their names in the signature."""
    from tensorir.expr.program import gathers
    from tensorir.schedule.primitives.assume import in_range

    names = {b.origin: b.name for b in s.program.inputs}
    found = [(t, limit, into) for t, limit, into in gathers(s.outputs) if not in_range(s.program, t, limit)]
    return tuple(dict.fromkeys(GatherRange(names[t], limit, into) for t, limit, into in found))


def source_for(s: Schedule, device: Device) -> tuple[Source, bool]:
    """What the schedule runs on ``device``, emitted or the user's text with the emitted launches; and whether that has
    to be proven to do no harm.
    """
    from tensorir.api.unproven import needs_proof

    target = s.target if s.target.language == device.target.language else device.target
    source = emit_source(s, target)
    edited = s.edited is not None and s.edited != source.text
    return replace(source, text=s.edited) if s.edited is not None else source, needs_proof(source, edited)


def build_source(s: Schedule, device: Device, limit_s: float | None = None) -> Executable:
    """Compile the schedule's source, or the user's edited text, for ``device``; see ``Schedule.build``."""
    source, doubted = source_for(s, device)
    if doubted:
        from tensorir.api.unproven import LIMIT_S, prove
        from tensorir.check.verdict import arguments_for

        prove(source, device, lambda: arguments_for(s), LIMIT_S if limit_s is None else limit_s)
    from tensorir.api.shipping import again_of

    target = s.target if s.target.language == device.target.language else device.target
    return Executable(source, device, str(s.trace), s.outputs, again=again_of(s), target=target)


def run_guarded(
    s: Schedule, arrays: Sequence[Any], device: Device, limit_s: float | None = None
) -> tuple[Source, Any, tuple[Problem, ...]]:
    """What the schedule runs on ``device``, its results for these inputs, and what it did that it must not."""
    source, doubted = source_for(s, device)
    if doubted:
        from tensorir.api import unproven

        return source, *unproven.run_guarded(source, device, arrays, unproven.LIMIT_S if limit_s is None else limit_s)
    return source, *Program(source, device).run_guarded(*arrays)


@answering(LaunchError)
class Executable(Shown):
    """Compiled kernels of one program on one device: ``f(a, b)`` runs them.

    Arguments are numpy, pyopencl, cupy or DLPack arrays in the order of the declarations, or by the names of the
    inputs, ``f(A=a, B=b)``; the results are of the same kind. ``out=`` takes arrays to write into. ``nearest`` says
    whose configuration this is where ``w.load(nearest=True)`` took it from another shape: a ``Near`` with its distance;
    else it is None. ``max_error`` is what results may be off by, relative to the largest, where kernels round more than
    was declared.
    """

    def __init__(
        self,
        source: Source,
        device: Device,
        trace: str | Callable[[], str] = "",
        outputs: Sequence[Tensor] = (),
        program: Program | None = None,
        nearest: Near | None = None,
        max_error: float | None = None,
        again: Callable[[str], Part] | None = None,
        target: Target | None = None,
    ) -> None:
        self.emitted, self.device, self._trace, self.outputs = source, device, trace, tuple(outputs)
        self.nearest, self.max_error = nearest, max_error
        self._again = again  # the same computation for another target, for export
        self._target = target or device.target  # what it was lowered for
        self.program = program or Program(source, device)

    def __repr__(self) -> str:
        from tensorir.runtime.timing import copied_names

        copies = f"; its last call copied {copied_names(self.copies)}" if self.copies else ""
        return few_lines(f"<Executable {repr(self.program)[1:-1]}{copies}>")

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        return self.program(*(by_name(self.emitted, arrays, named) if named else arrays), out=out)

    def bind(self, *arrays: Any, out: Any = None, **named: Any) -> BoundLaunch:
        """A prebound launch on these arrays: calling it costs no argument checks. Kernels that run once run here."""
        return self.program.bind(*by_name(self.emitted, arrays, named), out=out)

    def prepack(self, **arrays: Any) -> Executable:
        """The same kernels with inputs fixed: what depends on those alone (``run="once"`` in the schedule) is made now.

        >>> g = f.prepack(w=weights)  # w: an input that only such kernels read
        >>> y = g(x)

        Raises LaunchError ``launch.prepack``, which lists the inputs that can be fixed.
        """
        program = self.program.prepack(**arrays)
        return Executable(
            program.source, self.device, self._trace, self.outputs, program, max_error=self.max_error,
            again=self._again, target=self._target,
        )  # fmt: skip

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise unknown("executable", name, "an Executable", public(Executable))

    @property
    def trace(self) -> str:
        """The steps of the schedule as Python statements; empty where they are not known."""
        return self._trace if isinstance(self._trace, str) else self._trace()

    @property
    def source(self) -> str:
        """The text that runs."""
        return self.emitted.text

    @property
    def copies(self) -> tuple[Problem, ...]:
        """Which host arrays the last call copied that another layout or address would spare it, and what to do."""
        return self.program.copies

    @property
    def resources(self) -> dict[str, Any] | None:
        """Registers, spills and shared memory, as far as the device tells."""
        return self.program.resources

    def time(self, *arrays: Any, repeat: int = 30, out: Any = None, **named: Any) -> Timing:
        """Time of one run of the kernels (without those that run once): median with a 95 % interval."""
        return self.program.time(
            *by_name(self.emitted, arrays, named), out=out, repeat=need_int("repeat", repeat, 1, 100_000, LaunchError)
        )

    def torch(self, name: str, backward: Mapping[str, Executable] | None = None) -> Any:
        """Register as an operator of PyTorch and return it: ``torch.ops.namespace.name``.

        >>> op = f.torch("mine::conv", backward={"x": dx, "w": dw})
        >>> y = op(x, w)  # tensors; also torch.ops.mine.conv(x, w), under torch.compile, and differentiated

        name:     "namespace::name"; one that was registered so before is replaced
        backward: by input, what computes its gradient: its inputs are those of the operator (and its outputs) by their
                  names, and the gradient that comes in as ``d_<output>``. An input without one is refused when it
                  requires a gradient

        On a processor tensors are worked on where they are; other strides are made contiguous. On a GPU kernels run on
        PyTorch's current stream, without waiting (not yet run on a GPU).

        Raises TorchError: ``torch.missing``, ``torch.name``, ``torch.taken``, ``torch.backward``; a call raises what
        calls of executables do, and ``launch.gradient``, ``launch.second-derivative``.
        """
        from tensorir.api.torch_operator import register

        return register(self, name, backward)

    def export(
        self,
        path: str | Path,
        to: str | Sequence[str] = ("source",),
        *,
        name: str | None = None,
        arch: Sequence[str] = (),
        backward: Mapping[str, Schedule | Executable] | None = None,
        batched: Schedule | Executable | Sequence[Schedule | Executable] | None = None,
    ) -> Path:
        """Write a folder that runs without tensorir; see ``tensorir.export``.

        to:   destinations, a list of them or one: "source", "pyopencl", "cupy" … One that takes another language than
              this kernel's gets the same schedule in that language
        name: "NS::NAME" where one of them registers an operator; by the folder's name when None
        arch: architectures for which CUDA kernels are compiled now ("sm_80", "sm_90a"); PTX comes with them, and for
              kernels that run on one architecture only another that runs on the others
        backward: by input, what computes its gradient, as for ``f.torch``; for destinations that differentiate
        batched: what computes the same of several items at once, one or a list: their number is in front of the shapes
              of outputs, and of those inputs that there are several of. JAX's vmap of so many items calls it

        Raises ExportError ``export.destination``, ``export.language``, ``export.name``, ``export.arch``,
        ``export.portable``, ``export.backward``, ``export.batched``, ``export.not-empty``, ``export.unwritable``, and
        LoweringError where a destination's language cannot express the schedule.
        """
        from tensorir.api.shipping import parts_of, parts_of_batches
        from tensorir.export.folder import export_part

        derived, several = parts_of(backward), parts_of_batches(batched)
        return export_part(self._part(), path, to, name=name, arch=arch, backward=derived, batched=several)

    def _part(self) -> Part:
        """This program, to be exported."""
        from tensorir.export.part import Part

        target, again = self._target, self._lowered_again if self._again else None
        return Part(
            self.emitted, self.outputs, None, self.trace, target.kind, {}, self.max_error, again, target.arch
        )  # fmt: skip

    def _lowered_again(self, target: str) -> Part:
        """This computation for another target, with the inputs that are fixed here."""
        assert self._again is not None
        made = self._again(target)
        inputs = {p.name for p in made.source.inputs}
        held = {p.name: p.data or b"" for p in self.emitted.params if p.role == "constant" and p.name in inputs}
        return replace(made, source=made.source.fixed(held))
