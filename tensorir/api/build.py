"""``Executable``: compiled kernels on a device, callable on arrays; exporting and PyTorch are imported on use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.api.exportable import Exportable, parts_of, parts_of_batches
from tensorir.codegen.source import Source
from tensorir.errors import LaunchError, LaunchTypeError, Problem, TensorIRError, refuse
from tensorir.errors.habits import answering, public, unknown
from tensorir.errors.handles import Handle, unpicklable
from tensorir.errors.needs import need_int, shown, wrong
from tensorir.errors.shown import Shown, few_lines
from tensorir.export.program import ExportProgram
from tensorir.runtime.base import Resources
from tensorir.runtime.call import by_name
from tensorir.runtime.device import Device
from tensorir.runtime.launch import BoundLaunch, CompiledProgram
from tensorir.runtime.timing import Timing, copied_names
from tensorir.target import Target
from tensorir.tune.nearest_shape import NearestShape

if TYPE_CHECKING:
    from tensorir.expr.tensor import Tensor


@answering(LaunchError)
class Executable(Handle, Exportable, Shown):
    """Compiled kernels of one program on one device: ``f(a, b)`` runs them.

    Arguments are numpy, pyopencl, cupy or DLPack arrays in the order of the declarations, or by the names of the
    inputs, ``f(A=a, B=b)``; the results are of the same kind, an array or, for several outputs, a tuple. ``out=`` takes
    arrays to write into.

    nearest:   the ``NearestShape`` with this configuration, if ``w.load(nearest=True)`` found one; else None
    max_error: allowed error relative to the largest element of a result; None: no more rounding than was declared
    """

    def __init__(
        self,
        source: Source,
        device: Device,
        trace: str | Callable[[], str] = "",
        outputs: Sequence[Tensor] = (),
        program: CompiledProgram | None = None,
        nearest: NearestShape | None = None,
        max_error: float | None = None,
        again: Callable[[str], ExportProgram] | None = None,
        target: Target | None = None,
    ) -> None:
        if not isinstance(source, Source) or not isinstance(device, Device):
            raise wrong("what makes an executable", source, "an emitted source, and a device", LaunchError,
                        hint="s.build(), which makes executables")  # fmt: skip
        self.emitted, self.device, self._trace, self.outputs = source, device, trace, tuple(outputs)
        self.nearest, self.max_error = nearest, max_error
        self._again = again  # the same computation for another target, for export
        self._target = target or device.target  # what it was lowered for
        self.program = program or CompiledProgram(source, device)

    def __repr__(self) -> str:
        copies = f"; its last call copied {copied_names(self.copies)}" if self.copies else ""
        return few_lines(f"<Executable {repr(self.program)[1:-1]}{copies}>")

    def _data(self) -> tuple[Any, ...]:
        again = None if self._again is None or unpicklable(self._again) else self._again
        outputs = () if unpicklable(self.outputs) else self.outputs
        made = (self.emitted, self.device, self.trace, outputs, None, self.nearest, self.max_error, again, self._target)
        return Executable, made

    def __call__(self, *arrays: object, out: object = None, **named: object) -> Any:
        return self.program(*(by_name(self.emitted, arrays, named) if named else arrays), out=out)

    def bind(self, *arrays: object, out: object = None, **named: object) -> BoundLaunch:
        """A prebound launch on these arrays: ``b()`` enqueues the kernels without argument checks and returns at once,
        ``b.wait()`` returns the results.

        Done here, once: checks, copies of host arrays that cannot be used in place, kernels with ``run="once"``.
        """
        return self.program.bind(*by_name(self.emitted, arrays, named), out=out)

    def prepack(self, **arrays: object) -> Executable:
        """New Executable without the inputs ``arrays``, which are fixed: kernels that depend on those alone
        (``run="once"`` in the schedule) run now, or at the first call if there are symbolic dims.

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
        """The schedule's steps as Python statements; "" if unknown."""
        return self._trace if isinstance(self._trace, str) else self._trace()

    @property
    def source(self) -> str:
        """Text of all kernels, in the device's language."""
        return self.emitted.text

    @property
    def copies(self) -> tuple[Problem, ...]:
        """One Problem ``launch.copied-…`` per host array that the last call copied, with the layout or alignment that
        would avoid it; () if none.
        """
        return self.program.copies

    @property
    def resources(self) -> Resources | None:
        """{"registers", "spills", "shared_bytes"} of the worst kernel (None if unknown), and those of each in
        "kernels"; None if the device reports nothing.
        """
        return self.program.resources

    def time(self, *arrays: object, repeat: int = 30, out: object = None, **named: object) -> Timing:
        """Seconds of one run on these arrays: median with its 95 % interval. Copies and ``run="once"`` kernels are left
        out.

        repeat: samples at least, 1 to 100,000; it lasts 0.1 s at least, and ends after 10 s with fewer (3 or more)
        """
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
        _check_torch_name(self, name)
        if importlib.util.find_spec("torch") is None:
            raise refuse(TorchError, "torch.missing", "PyTorch is not installed", hint='pip install "tensorir[torch]"')
        from tensorir.api import torch_kernels  # which needs it

        return torch_kernels.register(self, name, {} if backward is None else _kernels_of(backward), _torch_error)

    def export(
        self,
        path: str | Path,
        to: str | Sequence[str] = ("source",),
        *,
        name: str | None = None,
        arch: Sequence[str] = (),
        backward: Mapping[str, Exportable] | None = None,
        batched: Exportable | Sequence[Exportable] | None = None,
    ) -> Path:
        """Write a folder that runs without tensorir; returns its path.

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
        from tensorir.export.folder import export_part

        derived, several = parts_of(backward), parts_of_batches(batched)
        return export_part(self._part(), path, to, name=name, arch=arch, backward=derived, batched=several)

    def _part(self) -> ExportProgram:
        """This program in the form that exporters take."""
        target, again = self._target, self._lowered_again if self._again else None
        return ExportProgram(
            self.emitted, self.outputs, None, self.trace, target.kind, {}, self.max_error, again, target.arch
        )  # fmt: skip

    def _lowered_again(self, target: str) -> ExportProgram:
        """This computation lowered for ``target``, with the fixed inputs of this executable."""
        assert self._again is not None
        made = self._again(target)
        inputs = {p.name for p in made.source.inputs}
        held = {p.name: p.data or b"" for p in self.emitted.params if p.role == "constant" and p.name in inputs}
        return replace(made, source=made.source.fixed(held))


class TorchError(TensorIRError, ValueError):
    """A kernel cannot be registered as a PyTorch operator."""


def _check_torch_name(f: Executable, name: object) -> None:
    space, _, last = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (space.isidentifier() and last.isidentifier() and space.isascii() and last.isascii()):
        message = f"an operator is named namespace::name, got {shown(name)}"
        raise refuse(TorchError, "torch.name", message, hint=f'f.torch("mine::{_plain(f.emitted.name)}")')
    if space in ("aten", "prim", "prims"):
        raise refuse(TorchError, "torch.name", f"{space} is PyTorch's own", hint=f'f.torch("mine::{last}")')
    for p in f.emitted.inputs:
        if not (p.name.isidentifier() and p.name.isascii()) or iskeyword(p.name):
            message = f"an input of an operator cannot be named {shown(p.name)}"
            raise refuse(TorchError, "torch.name", message, hint=f'tir.placeholder(…, name="{_plain(p.name)}")')


def _plain(name: str) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain + "_" if iskeyword(plain) else plain if plain[:1].isalpha() else f"x{plain}"


def _kernels_of(backward: object) -> Mapping[str, Executable]:
    if not isinstance(backward, Mapping) or not all(isinstance(g, Executable) for g in backward.values()):
        message = f"backward is a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(TorchError, "torch.backward", message, hint='backward={"x": dx.build()}')
    return backward


def _torch_error(code: str, message: str, kind: type[Exception]) -> Exception:
    """The package's exception of class ``kind`` with ``code``."""
    types: Mapping[str, type[TensorIRError]] = {"torch": TorchError, "launch": LaunchError}
    made = LaunchTypeError if kind is TypeError else types[code.partition(".")[0]]
    return refuse(made, code, message)
