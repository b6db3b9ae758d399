"""Kernels as operators of PyTorch: registered once, with what tracing, compiling and differentiation need.

    op = register("mine::conv", [Kernel(arguments, body)], backward={"x": [Kernel(…)]})

It needs PyTorch alone. What computes is a ``Body``: a callable on addresses. Arguments are described as in
``manifest.json``. The operator makes tensors contiguous and refuses, by name, whatever else does not fit, in the kernel
and while tracing. It differentiates itself: with inputs that require no gradient it goes on below autograd at once, and
one that requires a gradient and has no backward is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DTYPES = {"float8_e4m3": "float8_e4m3fn"}
"""Names of element types that are others in PyTorch."""

Refuse = Callable[[str, str, type[Exception]], Exception]
"""Makes an error of a code (``launch.dtype``), a message, and the type of exception that suits where codes do not."""


class Body(Protocol):
    """What computes, on addresses of contiguous memory; numbers are given as they are.

    buffers:   inputs and numbers in order, then outputs
    stream:    a CUstream, or 0
    workspace: address of ``workspace_bytes`` bytes on the GPU, or 0
    packed:    what ``pack(buffers)`` gave for these inputs, or None; a body without ``pack`` is never given one

    It returns when the outputs are there, on a GPU when what makes them is enqueued on the stream.
    """

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: Any = None) -> object: ...


class Argument(NamedTuple):
    """An argument of an operator: its name, and what fits it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    align: int
    kind: Any

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Argument:
        """Of an argument as a manifest describes it."""
        kind = getattr(torch, DTYPES.get(about["dtype"], about["dtype"]))
        shape = tuple(about["shape"])
        return cls(about["name"], about["dtype"], shape, about["role"], int(about.get("align") or 1), kind)

    @property
    def written(self) -> str:
        """As it stands in a schema."""
        if self.role != "scalar":
            return f"Tensor {self.name}"
        kind = "bool" if self.dtype == "bool" else "float" if self.kind.is_floating_point else "SymInt"
        return f"{kind} {self.name}"


def plainly(_code: str, message: str, kind: type[Exception]) -> Exception:
    """The error of folders that run alone."""
    return kind(message)


class Kernel:
    """One way to compute, for arguments of certain shapes.

    about:  ``arguments`` as in a manifest, and of it ``gathers``, ``prepack`` and ``workspace_bytes`` where there are
    body:   see ``Body``
    device: where its tensors are: "cpu", "cuda", or one GPU, "cuda:0"
    """

    def __init__(self, about: Mapping[str, Any], body: Body, device: str = "cpu", refuse: Refuse = plainly) -> None:
        every = [Argument.of(a) for a in about["arguments"]]
        self.given = tuple(a for a in every if a.role in ("input", "scalar"))
        self.results = tuple(a for a in every if a.role == "output")
        self.body, self.device, self.refuse = body, torch.device(device), refuse
        self.on_cpu = self.device.type == "cpu"
        names = [a.name for a in self.given]
        self.gathers = [(names.index(g["param"]), g["limit"], g["into"]) for g in about.get("gathers", ())
                        if g["param"] in names]  # fmt: skip
        self.workspace_bytes = 0 if self.on_cpu else int(about.get("workspace_bytes", 0))
        held = [names.index(n) for n in about.get("prepack", ()) if n in names]
        self.packs = Packs(held, body.pack) if held and self.on_cpu and hasattr(body, "pack") else None
        self.empty = all(prod(a.shape) == 0 for a in self.results)

    def __call__(self, *given: Any) -> Any:
        """Check, make contiguous, compute, and return new tensors."""
        tensors, buffers = self.taken(given)
        for position, limit, into in self.gathers:
            self.check_gather(position, tensors[position], limit, into)
        where = self.device if self.on_cpu else next(t.device for t in tensors if t is not None)
        made = [torch.empty(a.shape, dtype=a.kind, device=where) for a in self.results]
        if not self.empty:
            buffers += [t.data_ptr() for t in made]
            if not self.on_cpu:
                self.enqueue(buffers, where)
            elif self.packs is None:
                self.body(buffers)
            else:
                self.body(buffers, packed=self.packs.of(given, buffers))
        return made[0] if len(made) == 1 else tuple(made)

    def taken(self, given: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The tensors that the body works on, which stay alive as long as the list does, and their addresses."""
        tensors: list[Any] = []
        buffers: list[Any] = []
        on_cpu = self.on_cpu
        for (_, _, shape, role, align, kind), value in zip(self.given, given, strict=True):
            if role == "scalar":
                tensors.append(None)
                buffers.append(value)
                continue
            if value.dtype is not kind or value.shape != shape or not (value.is_cpu if on_cpu else self.is_here(value)):
                raise self.misfit(given) or ValueError(f"{self.given[len(tensors)].name} does not fit")
            if not value.is_contiguous():
                value = value.contiguous()
            address = value.data_ptr()
            if address % align or not address:
                value = self.moved(value)
                address = value.data_ptr()
            tensors.append(value)
            buffers.append(address)
        for n, a in enumerate(self.given):
            if a.role == "scalar":
                self.check_number(a, given[n])
        return tensors, buffers

    def is_here(self, value: Any) -> bool:
        """Whether a tensor is on the device."""
        index = self.device.index
        return bool(value.device.type == self.device.type and index in (None, value.device.index))

    def moved(self, value: Any) -> Any:
        """A tensor at an address that kernels can use."""
        if value.numel() and not value.data_ptr():
            raise self.refuse("launch.type", "a tensor without memory (fake or meta) reached the kernel", TypeError)
        return value.clone()

    def enqueue(self, buffers: Sequence[Any], where: Any) -> None:
        """On PyTorch's current stream, without waiting for it. Not yet run on a GPU."""
        stream = torch.cuda.current_stream(where).cuda_stream
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=where) if self.workspace_bytes else None
        with torch.cuda.device(where):
            self.body(buffers, stream, 0 if workspace is None else workspace.data_ptr())

    def check_gather(self, position: int, indices: Any, limit: int, into: str) -> None:
        """Refuse an index out of range; on a GPU by an assertion there, which waits for nothing."""
        if not indices.numel():
            return
        wide = indices.to(torch.int64) if indices.dtype in (torch.uint16, torch.uint32, torch.uint64) else indices
        if not self.on_cpu:
            torch._assert_async(((wide >= 0) & (wide < limit)).all())
            return
        low, high = (int(n) for n in torch.aminmax(wide))
        if low < 0 or high >= limit:
            where = tuple(torch.nonzero((wide < 0) | (wide >= limit))[0].tolist())
            message = (
                f"{self.given[position].name}: expected indices from 0 to {limit - 1} (they index {into}), "
                f"got {int(wide[where])} at {where}"
            )
            raise self.refuse("launch.index-range", message, IndexError)

    def check_number(self, a: Argument, value: Any) -> None:
        """Refuse an integer that its type does not hold."""
        if a.kind.is_floating_point or a.dtype == "bool":
            return
        limits = torch.iinfo(a.kind)
        if not limits.min <= value <= limits.max:
            raise self.refuse("launch.dtype", f"{a.name}: expected a {a.dtype}, got {value}", ValueError)

    def refused(self, given: Sequence[Any]) -> None:
        """Refuse what a call refuses."""
        found = self.misfit(given)
        if found is not None:
            raise found
        for a, value in zip(self.given, given, strict=True):
            if a.role == "scalar":
                self.check_number(a, value)
        for position, limit, into in self.gathers:
            self.check_gather(position, given[position], limit, into)

    def fits(self, given: Sequence[Any]) -> bool:
        """Whether types, shapes and the device are those of this kernel."""
        pairs = zip(self.given, given, strict=True)
        return all(a.role == "scalar" or self.fits_one(a, v) for a, v in pairs)

    def fits_one(self, a: Argument, value: Any) -> bool:
        """Whether a tensor is what is expected, here or (``could_be_here``) nowhere."""
        return value.dtype is a.kind and tuple(value.shape) == a.shape and self.could_be_here(value)

    def could_be_here(self, value: Any) -> bool:
        """Whether a tensor is on the device, or without memory."""
        return value.device.type == "meta" or self.is_here(value)

    def misfit(self, given: Sequence[Any]) -> Exception | None:
        """The error for the first argument that does not fit; all may be without memory, on the device "meta"."""
        meta = all(v.device.type == "meta" for v in given if isinstance(v, torch.Tensor))
        for a, value in zip(self.given, given, strict=True):
            if a.role == "scalar":
                continue
            if value.dtype is not a.kind:
                got = str(value.dtype).removeprefix("torch.")
                return self.refuse("launch.dtype", f"{a.name}: expected dtype {a.dtype}, got {got}", TypeError)
            if tuple(value.shape) != a.shape:
                message = f"{a.name}: expected shape {a.shape}, got {tuple(value.shape)}"
                return self.refuse("launch.shape", message, ValueError)
            if not meta and not self.is_here(value):
                message = f"{a.name}: expected a tensor on {self.device}, got one on {value.device}"
                return self.refuse("launch.device", message, ValueError)
        return None

    def traced(self, given: Sequence[Any]) -> Any:
        """The results as a tracer needs them: types, shapes, strides and the device."""
        found = self.misfit(given)
        if found is not None:
            raise found
        where = next((v.device for v in given if isinstance(v, torch.Tensor)), self.device)
        made = tuple(torch.empty(a.shape, dtype=a.kind, device=where) for a in self.results)
        return made[0] if len(made) == 1 else made


class Packs:
    """What was packed of constant inputs (weights), kept as long as they live and are not written to.

    A tensor is known by its address, strides and storage, and written to when its version is another: whatever writes
    to it without PyTorch knowing (NumPy, ``.data``) has to be followed by a new tensor.
    """

    def __init__(self, held: Sequence[int], pack: Callable[[Sequence[Any]], Any]) -> None:
        self.held, self.pack = held, pack
        self.kept: dict[Any, tuple[Any, Any, Any]] = {}

    def of(self, given: Sequence[Any], buffers: Sequence[Any]) -> Any:
        """What to run with; None for what cannot be kept: tensors of inference mode have no version."""
        tensors = [given[n] for n in self.held]
        if any(t.is_inference() for t in tensors):
            return None
        key = tuple((t.data_ptr(), t.stride()) for t in tensors)
        state = tuple((t.untyped_storage()._cdata, t._version) for t in tensors)
        found = self.kept.get(key)
        if found is None or found[0] != state:
            packed = self.pack(buffers)
            for old in [k for k, (_, refs, _) in list(self.kept.items()) if any(r.expired() for r in refs)]:
                self.kept.pop(old, None)
            # the reference keeps the number of a storage from being used again, not its memory
            found = self.kept[key] = state, [StorageWeakRef(t.untyped_storage()) for t in tensors], packed
        return found[2]


class Operator:
    """A registered operator: its kernels can be replaced by others of the same signature.

    name:      "namespace::name"
    kernels:   one for each set of shapes, all with the same names
    gradients: by input, the operator that computes its gradient and the names of what that takes
    of:        the operator whose gradient this computes; empty for none
    """

    def __init__(self, name: str, kernels: Sequence[Kernel], of: str = "", doors: Any = None) -> None:
        self.name, self.of, self.doors = name, of, doors
        self.slot: int | None = None
        self.kernels: tuple[Kernel, ...] = ()
        self.gradients: dict[str, tuple[Operator, tuple[str, ...]]] = {}
        self.put(kernels)
        self.schema = self.written()
        self.library: Any = None
        self.op: Any = None

    def put(self, kernels: Sequence[Kernel]) -> None:
        """Compute by these from now on."""
        first = kernels[0]
        self.only = first if len(kernels) == 1 else None
        on_cpu = [k for k in kernels if k.on_cpu]
        self.by_door = (
            on_cpu[0] if len(on_cpu) == 1 and self.doors is not None and self.doors.takes(on_cpu[0]) else None
        )
        self.names = tuple(a.name for a in first.given)
        self.tensors = tuple(n for n, a in enumerate(first.given) if a.role == "input")
        self.differentiable = any(a.kind.is_floating_point for a in first.results)
        self.kernels = tuple(kernels)
        if self.slot is not None:
            self.doors.fill(self.slot, self.by_door)

    def written(self) -> str:
        """Its schema."""
        first = self.kernels[0]
        made = ", ".join(["Tensor"] * len(first.results))
        made = made if len(first.results) == 1 else f"({made})"
        return f"{self.name.partition('::')[2]}({', '.join(a.written for a in first.given)}) -> {made}"

    def choose(self, given: Sequence[Any]) -> Kernel:
        """The kernel for these arguments."""
        if self.only is not None:
            return self.only
        found = next((k for k in self.kernels if k.fits(given)), None)
        if found is None:
            raise self.unknown(given)
        return found

    def unknown(self, given: Sequence[Any]) -> Exception:
        """The error where no kernel takes these shapes, or these types."""
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
        """What the first kernel takes."""
        return ", ".join(f"{a.name} {a.shape}" for a in self.kernels[0].given if a.role == "input")

    def refuse(self, code: str, message: str, kind: type[Exception] = ValueError) -> Exception:
        return self.kernels[0].refuse(code, message, kind)

    def run(self, *given: Any) -> Any:
        """The kernel of the dispatcher."""
        return (self.only or self.choose(given))(*given)

    def trace(self, *given: Any) -> Any:
        """The fake kernel."""
        return self.choose(given).traced(given)

    def autograd(self) -> Callable[..., Any]:
        """The kernel at the Autograd key: below it at once where nothing requires a gradient."""
        below, redispatch, tensors = torch._C._after_autograd_keyset, self.op._handle.redispatch_boxed, self.tensors

        def autograd(keyset: Any, *given: Any) -> Any:
            for n in tensors:
                if given[n].requires_grad and torch.is_grad_enabled() and self.differentiable:
                    self.check_gradients(given)
                    return self.function.apply(keyset & below, *given)
            try:
                return redispatch(keyset & below, *given)
            except RuntimeError:  # a door says less than is known here
                self.choose(given).refused(given)
                raise

        return autograd

    def check_gradients(self, given: Sequence[Any]) -> None:
        """Refuse an input that requires a gradient which nothing computes: it would be lost."""
        for n in self.tensors:
            name = self.names[n]
            if not given[n].requires_grad or name in self.gradients:
                continue
            if self.of:
                message = f"{self.of}: no second derivative ({name} of {self.name} requires a gradient)"
                raise self.refuse("launch.second-derivative", message, RuntimeError)
            message = (
                f"{self.name}: {name} requires a gradient and the operator has no backward for it; "
                f'backward={{"{name}": kernel}} when it is registered, or {name}.detach(), or torch.no_grad()'
            )
            raise self.refuse("launch.gradient", message, RuntimeError)

    def differentiated(self) -> Any:
        """The autograd function."""
        operator = self

        def forward(ctx: Any, below: Any, *given: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                made = operator.op.redispatch(below, *given)
            operator.save(ctx, given, made if isinstance(made, tuple) else (made,))
            return made

        def backward(ctx: Any, *incoming: Any) -> Any:
            return (None, *operator.differentiate(ctx, incoming))

        names = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type(self.name.replace("::", "_"), (torch.autograd.Function,), names)

    def save(self, ctx: Any, given: Sequence[Any], made: Sequence[Any]) -> None:
        """Keep what the gradients that are needed take."""
        wanted = [n for n, needed in zip(self.names, ctx.needs_input_grad[1:], strict=True) if needed]
        taken = {name for n in wanted for name in self.gradients[n][1]}
        results = [a.name for a in self.kernels[0].results]
        known = dict(zip(results, made, strict=True)) | dict(zip(self.names, given, strict=True))
        kept = {name: value for name, value in known.items() if name in taken}
        ctx.numbers = {name: value for name, value in kept.items() if not isinstance(value, torch.Tensor)}
        ctx.kept = tuple(name for name in kept if name not in ctx.numbers)
        ctx.save_for_backward(*(kept[name] for name in ctx.kept))
        ctx.mark_non_differentiable(*(t for t in made if not t.is_floating_point()))

    def differentiate(self, ctx: Any, incoming: Sequence[Any]) -> list[Any]:
        """The gradient of each input that needs one; by operators, which refuse to be differentiated again."""
        known = dict(zip(ctx.kept, ctx.saved_tensors, strict=True)) | ctx.numbers
        known |= {f"d_{a.name}": g for a, g in zip(self.kernels[0].results, incoming, strict=True)}
        made: list[Any] = []
        for name, needed in zip(self.names, ctx.needs_input_grad[1:], strict=True):
            if not needed:
                made.append(None)
                continue
            operator, taken = self.gradients[name]
            made.append(operator.op(*(known[t] for t in taken)))
        return made

    def define(self) -> None:
        """Register it; ValueError where something else has the name."""
        space, _, name = self.name.partition("::")
        library = torch.library.Library(space, "FRAGMENT")
        try:
            library.define(self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        except RuntimeError as error:
            if "multiple times" not in str(error) and "registered" not in str(error):
                raise
            message = f"{self.name} is registered already, by something else in this process; another name"
            raise self.refuse("torch.taken", message) from None
        self.function = self.differentiated()
        self.door = None
        if self.by_door is not None:
            self.slot, self.door = self.doors.open(self.name, self.by_door)
        for key in ("CPU", "CUDA") if self.tensors else ("BackendSelect",):
            if key != "CPU" or self.door is None:
                library.impl(name, self.run, key)
        torch.library.register_fake(self.name, self.trace, lib=library)
        self.library, self.op = library, getattr(getattr(torch.ops, space), name).default
        if self.tensors:
            library.impl(name, self.autograd(), "Autograd", with_keyset=True)

    def destroy(self) -> None:
        """Take the name back."""
        if self.door is not None:
            self.doors.close(self.slot, self.door)
        self.library._destroy()


_registered: dict[str, Operator] = {}


def register(
    name: str,
    kernels: Sequence[Kernel],
    backward: Mapping[str, Sequence[Kernel]] | None = None,
    doors: Any = None,
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
        derived = Operator(f"{name}_backward_{of}", computed, of=name, doors=doors)
        check_same(derived)
        check_gradient(made, of, derived)
        found[of] = derived
    for old in [n for n in _registered if n.startswith(f"{name}_backward_") and _registered[n].of == name]:
        if old not in {d.name for d in found.values()}:
            _registered.pop(old).destroy()
    gradients = {of: (placed(derived), derived.names) for of, derived in found.items()}
    operator = placed(made)
    operator.gradients = gradients
    space, _, last = name.partition("::")
    return getattr(getattr(torch.ops, space), last)


def placed(made: Operator) -> Operator:
    """The registered operator of this name, with these kernels: the old one where its signature is the same, so that
    what was compiled with it goes on.
    """
    old = _registered.get(made.name)
    if old is not None and old.schema == made.schema and (old.by_door is None) == (made.by_door is None):
        old.of = made.of
        old.put(made.kernels)
        return old
    if old is not None:
        _registered.pop(made.name).destroy()
    made.define()
    _registered[made.name] = made
    return made


def check_same(made: Operator) -> None:
    """Kernels of one operator have the same arguments but for their shapes, and each other shapes."""
    said = [[(a.name, a.role) for a in (*k.given, *k.results)] for k in made.kernels]
    if any(one != said[0] for one in said):
        raise made.refuse("torch.kernels", f"{made.name}: its kernels take other arguments than the first")
    taken = [(k.device, *((a.dtype, a.shape) for a in k.given)) for k in made.kernels]
    if len(set(taken)) < len(taken):
        raise made.refuse("torch.kernels", f"{made.name}: two of its kernels take arguments of the same shapes")


def check_gradient(made: Operator, of: str, derived: Operator) -> None:
    """A backward computes one gradient, of the shape and type of its input, from what there is."""
    inputs = [a.name for a in made.kernels[0].given if a.role == "input" and a.kind.is_floating_point]
    code, what = "torch.backward", f"{made.name}, backward of {of}"
    if of not in inputs:
        there = ", ".join(inputs) or "none"
        raise made.refuse(code, f"{what}: no input that has a gradient; there are {there}")
    if len(derived.kernels) != len(made.kernels):
        raise made.refuse(code, f"{what}: {len(derived.kernels)} kernels for the {len(made.kernels)} of the operator")
    for kernel, back in zip(made.kernels, derived.kernels, strict=True):
        known = {f"d_{a.name}": a for a in kernel.results if a.kind.is_floating_point}
        known |= {a.name: a for a in (*kernel.results, *kernel.given)}
        for a in back.given:
            if a.name not in known:
                raise made.refuse(code, f"{what}: takes {a.name}; there are {', '.join(known)}")
            check_alike(made, f"{what}: its {a.name}", a, known[a.name])
        if len(back.results) != 1:
            raise made.refuse(code, f"{what}: gives {len(back.results)} results, should give one")
        wanted = next(a for a in kernel.given if a.name == of)
        check_alike(made, f"{what}: its result", back.results[0], wanted)


def check_alike(made: Operator, what: str, a: Argument, b: Argument) -> None:
    """Refuse an argument of a backward that is not like its namesake."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        message = f"{what} is {a.dtype}{list(a.shape)}, {b.name} is {b.dtype}{list(b.shape)}"
        raise made.refuse("torch.backward", message)
