"""Kernels as operators of PyTorch: registered once, with what tracing, compiling and differentiation need.

    op = register("mine::conv", [Kernel(arguments, body)], backward={"x": [Kernel(…)]})

It needs PyTorch alone. What computes is a ``Body``: a callable on addresses. Arguments are described as in
``manifest.json``. The operator makes tensors contiguous and refuses, by name, whatever else does not fit, in the kernel
and while tracing. It differentiates itself: with inputs that require no gradient it redispatches below autograd at
once, and one that requires a gradient and has no backward is refused.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().with_name(f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


torch_gradients = sibling("torch_gradients")
ON_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
IN_GRAPHS = "_in_graphs"
"""Suffix of the names of operators that stand for others in graphs."""
Kernel = Any
"""``Kernel`` of ``torch_kernel.py``."""


class Operator:
    """A registered operator: its kernels can be replaced by others of the same signature.

    name:      "namespace::name"
    kernels:   one for each set of shapes, all with the same names
    gradients: by input, the operator that computes its gradient and the names of what that takes
    of:        the operator whose gradient this computes; empty for none
    traced:    the operator that stands for this one in graphs which are traced: it packs weights in each call, since
               what compilers generate writes to memory without counting; None where nothing is packed once
    """

    def __init__(self, name: str, kernels: Sequence[Kernel], of: str = "", doors: Any = None) -> None:
        self.name, self.of, self.doors = name, of, doors
        self.slot: int | None = None
        self.kernels: tuple[Kernel, ...] = ()
        self.gradients: dict[str, tuple[Operator, tuple[str, ...]]] = {}
        self.traced: Operator | None = None
        self.put(kernels)
        self.schema = self.written()
        self.library: Any = None
        self.op: Any = None
        self.on_packed: Any = None

    def put(self, kernels: Sequence[Kernel]) -> None:
        """Replace the kernels."""
        first = kernels[0]
        self.only = first if len(kernels) == 1 else None
        on_cpu = [k for k in kernels if k.on_cpu]
        self.by_door = (
            on_cpu[0] if len(on_cpu) == 1 and self.doors is not None and self.doors.takes(on_cpu[0]) else None
        )
        self.packs: Any = None if self.by_door is None else self.by_door.packs
        self.names = tuple(a.name for a in first.given)
        self.tensors = tuple(n for n, a in enumerate(first.given) if a.role == "input")
        self.differentiable = any(a.kind.is_floating_point for a in first.results)
        self.kernels = tuple(kernels)
        if self.slot is not None:
            self.doors.fill(self.slot, self.by_door)

    def written(self, suffix: str = "", more: str = "") -> str:
        """Schema text; with ``suffix`` and ``more``, that of a variant with further arguments."""
        first = self.kernels[0]
        made = ", ".join(["Tensor"] * len(first.results))
        made = made if len(first.results) == 1 else f"({made})"
        given = ", ".join(a.written for a in first.given) + more
        return f"{self.name.partition('::')[2]}{suffix}({given}) -> {made}"

    def choose(self, given: Sequence[object]) -> Kernel:
        """Kernel matching the arguments' shapes."""
        if self.only is not None:
            return self.only
        found = next((k for k in self.kernels if k.fits(given)), None)
        if found is None:
            raise self.unknown(given)
        return found

    def unknown(self, given: Sequence[torch.Tensor]) -> Exception:
        """Exception for shapes or dtypes that no kernel accepts."""
        pairs = [list(zip(k.given, given, strict=True)) for k in self.kernels]
        if len({k.device for k in self.kernels}) == len(self.kernels):  # one for each device
            near = next(
                (k for k in self.kernels if any(k.could_be_here(given[n]) for n in self.tensors)), self.kernels[0]
            )
            return near.misfit(given) or self.refuse("launch.device", f"{self.name}: other tensors")
        if not any(all(a.role == "scalar" or v.dtype is a.kind for a, v in one) for one in pairs):
            return self.kernels[0].misfit(given) or self.refuse(
                "launch.dtype", f"{self.name}: no kernel of these types"
            )
        got = ", ".join(f"{a.name} {tuple(v.shape)}" for a, v in pairs[0] if a.role == "input")
        message = f"{self.name}: no kernel for {got}; there are {len(self.kernels)}, the first for {self.shapes()}"
        return self.refuse("launch.shape", message)

    def shapes(self) -> str:
        """Text of the first kernel's input shapes."""
        return ", ".join(f"{a.name} {a.shape}" for a in self.kernels[0].given if a.role == "input")

    def refuse(self, code: str, message: str, kind: type[Exception] = ValueError) -> Exception:
        made: Exception = self.kernels[0].refuse(code, message, kind)
        return made

    def run(self, *given: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Dispatcher entry: checks and computes."""
        return (self.only or self.choose(given))(*given)

    def run_packed(self, *given: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Dispatcher entry with cached packed weights, calling the variant that takes them."""
        try:
            packed = self.packs.of(given)
        except AttributeError:  # None in place of a tensor
            raise self.choose(given).misfit(given) or TypeError("no tensors") from None
        return self.run(*given) if packed is None else self.on_packed(ON_CPU, *given, packed)

    def refuse_gradient(self, _: object, *given: object) -> NoReturn:
        """Autograd entry of the packed variant, which must not be called by users: raises."""
        raise RuntimeError(f"torch.ops.{self.name.replace('::', '.')} packs the weights that it is given")

    def trace(self, *given: object) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Fake (meta) implementation for tracing."""
        return self.choose(given).traced(given)

    def into_graph(self, mode: Any, op: Any, _: object, given: Sequence[object], named: Mapping[str, Any]) -> Any:
        """Record a call of the traced variant in a graph under tracing."""
        with mode:
            return (op if self.traced is None else self.traced.op)(*given, **named)

    def define(self) -> None:
        """Register the operator; ValueError if the name is taken."""
        if self.by_door is not None and not self.doors.free:  # others have taken the last ones
            self.by_door = self.packs = None
        space, _, name = self.name.partition("::")
        library = torch.library.Library(space, "FRAGMENT")
        try:
            library.define(self.schema, tags=(torch.Tag.pt2_compliant_tag,))
            if self.packs is not None:
                library.define(self.written("_on_packed", ", Tensor packed"))
        except RuntimeError as error:
            if "multiple times" not in str(error) and "registered" not in str(error):
                raise
            message = f"{self.name} is registered already, by something else in this process; another name"
            raise self.refuse("torch.taken", message) from None
        self.door = None
        if self.by_door is not None:
            taking = self.name if self.packs is None else f"{self.name}_on_packed"
            self.slot, self.door = self.doors.open(taking, self.by_door)
        if self.packs is not None:
            library.impl(name, self.run_packed, "CPU")
            library.impl(f"{name}_on_packed", self.refuse_gradient, "Autograd", with_keyset=True)
            taking_packed = getattr(getattr(torch.ops, space), f"{name}_on_packed").default
            self.on_packed = taking_packed._handle.redispatch_boxed
        for key in ("CPU", "CUDA") if self.tensors else ("BackendSelect",):
            if key != "CPU" or self.door is None:
                library.impl(name, self.run, key)
        torch.library.register_fake(self.name, self.trace, lib=library)
        if self.traced is not None:
            from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

            torch.library.register_torch_dispatch(self.name, ProxyTorchDispatchMode, self.into_graph, lib=library)
        self.library, self.op = library, getattr(getattr(torch.ops, space), name).default
        if self.tensors:
            library.impl(name, torch_gradients.autograd_kernel(self), "Autograd", with_keyset=True)
            torch.library.register_vmap(self.name, partial(torch_gradients.batched, self), lib=library)

    def destroy(self) -> None:
        """Unregister the operator."""
        if self.door is not None:
            self.doors.close(self.slot, self.door)
        self.library._destroy()


_registered: dict[str, Operator] = (
    vars(torch.library).setdefault("_of_folders", {}).setdefault(str(Path(__file__).resolve().parent), {})
)
"""By name, what this folder registered: kept with PyTorch, as a folder may be loaded as a package and by its path."""


def register(
    name: str,
    kernels: Sequence[Kernel],
    backward: Mapping[str, Sequence[Kernel]] | None = None,
    doors: object = None,
) -> Any:
    """Register an operator and return it, ``torch.ops.namespace.name``.

    kernels:  for each set of shapes one; names, roles and order are the same in all
    backward: by input, the kernels that compute its gradient. They take inputs and outputs of the operator by their
              names, and the gradient that comes in as ``d_<output>``
    doors:    by which kernels in C are called without Python (``Doors`` of ``torch_c.py``)

    A name that was registered by this function before is replaced; ValueError for one that something else has, and for
    kernels that do not fit.
    """
    made = Operator(name, kernels, doors=doors)
    check_same(made)
    found = {}
    for of, computed in (backward or {}).items():
        # what it takes is in its name: graphs that torch.compile keeps on disk call it with that, in this order
        taken = "_".join(a.name for a in computed[0].given)
        derived = Operator(f"{name}_grad_{of}_from_{taken}", computed, of=name, doors=doors)
        check_same(derived)
        torch_gradients.check_gradient(made, of, derived)
        found[of] = derived
    for old in [n for n in _registered if n.startswith(f"{name}_grad_") and _registered[n].of == name]:
        if old.removesuffix(IN_GRAPHS) not in {d.name for d in found.values()}:
            _registered.pop(old).destroy()
    gradients = {of: (placed(derived), derived.names) for of, derived in found.items()}
    operator = placed(made)
    operator.gradients = gradients
    if operator.traced is not None:
        operator.traced.gradients = gradients
    space, _, last = name.partition("::")
    return getattr(getattr(torch.ops, space), last)


def placed(made: Operator) -> Operator:
    """The registered operator with new kernels; the existing object is kept if the signature is unchanged, for code
    compiled with it.
    """
    old = _registered.get(made.name)
    if any(k.packs is not None for k in made.kernels):
        kernels = [k.packing_each_time() for k in made.kernels]
        made.traced = placed(Operator(made.name + IN_GRAPHS, kernels, made.of, made.doors))
    kinds = [(o.schema, o.by_door is None, o.packs is None, o.traced is None) for o in (old, made) if o is not None]
    if old is not None and kinds[0] == kinds[1]:
        old.of, old.traced = made.of, made.traced
        old.put(made.kernels)
        return old
    if old is not None:
        _registered.pop(made.name).destroy()
    made.define()
    _registered[made.name] = made
    return made


def check_same(made: Operator) -> None:
    """Raise unless all kernels of an operator have equal arguments except shapes, and distinct shapes."""
    said = [[(a.name, a.role) for a in (*k.given, *k.results)] for k in made.kernels]
    if any(one != said[0] for one in said):
        raise made.refuse("torch.kernels", f"{made.name}: its kernels take other arguments than the first")
    taken = [(k.device, *((a.dtype, a.shape) for a in k.given)) for k in made.kernels]
    if len(set(taken)) < len(taken):
        raise made.refuse("torch.kernels", f"{made.name}: two of its kernels take arguments of the same shapes")
