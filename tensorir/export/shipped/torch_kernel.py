"""``Kernel`` for PyTorch operators: validates tensors, makes them contiguous, and calls a ``Body`` on addresses.

It needs PyTorch alone. What computes is a ``Body``: a callable on addresses. Arguments are described as in
``manifest.json``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

DTYPES = {"float8_e4m3": "float8_e4m3fn"}
"""Names of element types that are others in PyTorch."""

KEPT = 16
"""Extents for which a kernel with dims keeps what it checks."""
Refuse = Callable[[str, str, type[Exception]], Exception]
"""Makes an error of a code (``launch.dtype``), a message, and the type of exception that suits where codes do not."""


class Body(Protocol):
    """A computation on addresses of contiguous memory; numbers are given as they are.

    buffers:   inputs and numbers in order, then outputs
    stream:    a CUstream, or 0
    workspace: address of ``workspace_bytes`` bytes on the GPU, or 0
    packed:    what ``pack(inputs)`` gave for these inputs, or None, as for a body that has no ``pack``, or None for it

    It returns when the outputs are there, on a GPU when what makes them is enqueued on the stream.
    """

    def __call__(
        self, buffers: Sequence[object], stream: int = 0, workspace: int = 0, packed: object = None
    ) -> object: ...


class Argument(NamedTuple):
    """Name, role, dtype and shape of an operator's argument."""

    name: str
    dtype: str
    shape: tuple[Any, ...]
    role: str
    align: int
    kind: Any

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Argument:
        """Argument from its manifest entry."""
        kind = getattr(torch, DTYPES.get(about["dtype"], about["dtype"]))
        shape = tuple(about["shape"])
        return cls(about["name"], about["dtype"], shape, about["role"], int(about.get("align") or 1), kind)

    @property
    def written(self) -> str:
        """Its text in an operator schema."""
        if self.role != "scalar":
            return f"Tensor {self.name}"
        kind = "bool" if self.dtype == "bool" else "float" if self.kind.is_floating_point else "SymInt"
        return f"{kind} {self.name}"


def plainly(_code: str, message: str, kind: type[Exception]) -> Exception:
    """Default error factory of exported folders: ``kind(message)``."""
    return kind(message)


class Kernel:
    """One implementation of an operator, for certain shapes and a device.

    about:   manifest entry: ``arguments``, and if present ``gathers``, ``dims``, ``workspace_bytes``; ``held``: inputs
             read by "once" kernels
    body:    see ``Body``; dims follow the outputs
    device:  of its tensors: "cpu", "cuda", or "cuda:0"
    extents: module that evaluates expressions of dims
    """

    def __init__(
        self, about: Mapping[str, Any], body: Body, device: str = "cpu", refuse: Refuse = plainly, extents: Any = None
    ) -> None:
        self.dims, self.extents, self.made = tuple(about.get("dims", ())), extents, dict[tuple[int, ...], Kernel]()
        self.sizes: tuple[int, ...] = ()
        every = [Argument.of(a) for a in about["arguments"]]
        self.given = tuple(a for a in every if a.role in ("input", "scalar"))
        self.results = tuple(a for a in every if a.role == "output")
        self.body, self.device, self.refuse = body, torch.device(device), refuse
        self.on_cpu = self.device.type == "cpu"
        names = [a.name for a in self.given]
        self.gathers = [
            (names.index(g["param"]), g["limit"], g["into"], g.get("part", ()))
            for g in about.get("gathers", ())
            if g["param"] in names
        ]
        self.workspace_bytes = 0 if self.on_cpu else about.get("workspace_bytes", 0)
        held = [names.index(n) for n in about.get("held", ())]
        known = self.on_cpu and not any(self.given[n].role == "scalar" for n in held)
        pack = getattr(body, "pack", None) if known else None
        self.packs = None if pack is None else Packs(held, self.taken, pack)
        self.empty = all(0 in a.shape for a in self.results)

    def at(self, sizes: Mapping[str, Any]) -> Kernel:
        """This kernel at given dims, possibly tracer symbols."""
        key = tuple(sizes.values())
        symbols = any(isinstance(n, torch.SymInt) for n in key)
        if not symbols and key in self.made:
            return self.made[key]
        made, values = copy.copy(self), self.extents.values
        made.given, made.results = (
            tuple(a._replace(shape=tuple(values(a.shape, sizes))) for a in some) for some in (self.given, self.results)
        )
        made.gathers = [(n, values((limit,), sizes)[0], into, part) for n, limit, into, part in self.gathers]
        made.workspace_bytes = values((self.workspace_bytes,), sizes)[0]
        made.dims, made.sizes = (), key
        if not symbols:
            while len(self.made) >= KEPT:
                self.made.pop(next(iter(self.made)), None)
            self.made[key] = made
        return made

    def told(self, given: Sequence[Any]) -> dict[str, Any]:
        """{dim: value} from tensor shapes; raises if inconsistent or out of range."""
        pairs = [(a, v) for a, v in zip(self.given, given, strict=True) if a.role != "scalar"]
        found, faults = self.extents.told((a.name, a.shape, tuple(v.shape)) for a, v in pairs)
        if faults:
            raise self.refuse("launch.dim-disagree", faults[0], ValueError)
        for d in self.dims:
            if d["name"] not in found:
                a, v = next((a, v) for a, v in pairs if any(d["name"] in str(e) for e in a.shape))
                raise self.refuse("launch.shape", self.another_shape(a, v), ValueError)
            n, where = found[d["name"]]
            message = f"{where}: {d['name']} is {d['low']} to {d['high']}, got {n}"
            if isinstance(n, torch.SymInt):
                torch._check(n >= d["low"], lambda message=message: message)
                torch._check(n <= d["high"], lambda message=message: message)
            elif not d["low"] <= n <= d["high"]:
                raise self.refuse("launch.dim-range", message, ValueError)
        return {d["name"]: found[d["name"]][0] for d in self.dims}

    def here(self, given: Sequence[Any]) -> Kernel:
        """This kernel at the dims of these tensors."""
        if not self.dims:
            return self
        found = self.unlike(given)
        if found is not None:
            raise found
        return self.at(self.told(given))

    def __call__(self, *given: object) -> Any:
        """Check, make contiguous, compute, and return new tensors."""
        if self.dims:
            return self.here(given)(*given)
        try:
            tensors, buffers = self.taken(given)
        except AttributeError:  # None in place of a tensor
            raise self.misfit(given) or TypeError("no tensors") from None
        for position, limit, into, part in self.gathers:
            self.check_gather(position, tensors[position], limit, into, part)
        where = self.device if self.on_cpu else next(t.device for t in tensors if t is not None)
        made = [torch.empty(a.shape, dtype=a.kind, device=where) for a in self.results]
        if not self.empty:
            buffers += [*(t.data_ptr() for t in made), *self.sizes]
            if not self.on_cpu:
                self.enqueue(buffers, where)
            elif self.packs is None:
                self.body(buffers)
            else:
                self.body(buffers, packed=self.packs.of(given))
        return made[0] if len(made) == 1 else tuple(made)

    def taken(self, given: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor | None], list[object]]:
        """(contiguous tensors to keep alive, addresses for the body)."""
        if self.dims:
            return self.here(given).taken(given)
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

    def is_here(self, value: torch.Tensor) -> bool:
        """True if a tensor is on this kernel's device."""
        index = self.device.index
        return bool(value.device.type == self.device.type and index in (None, value.device.index))

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        """A contiguous, aligned version of a tensor."""
        if value.numel() and not value.data_ptr():
            raise self.refuse("launch.type", "a tensor without memory (fake or meta) reached the kernel", TypeError)
        return value.clone()

    def packing_each_time(self) -> Kernel:
        """This kernel without cached packed weights."""
        made = copy.copy(self)
        made.packs = None
        return made

    def packed_argument(self, nbytes: int) -> Argument:
        """Argument that holds packed inputs as bytes."""
        return Argument("packed", "uint8", (nbytes,), "input", 64, torch.uint8)

    def enqueue(self, buffers: Sequence[object], where: object) -> None:
        """Run the body on PyTorch's current stream without waiting. Not yet run on a GPU."""
        stream = torch.cuda.current_stream(where).cuda_stream
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=where) if self.workspace_bytes else None
        with torch.cuda.device(where):
            self.body(buffers, stream, 0 if workspace is None else workspace.data_ptr())

    def check_gather(
        self, position: int, indices: torch.Tensor, limit: int, into: str, part: Sequence[Sequence[int]] = ()
    ) -> None:
        """Refuse an index out of range in a part of a tensor; on a GPU by an assertion there, which waits for nothing.

        part: for each dimension start, stop and step of a slice, or () for all of it; () is the whole tensor
        """
        slices = tuple(slice(*p) if p else slice(None) for p in part)
        indices = indices[slices] if slices else indices
        if not indices.numel():
            return
        wide = indices.to(torch.int64) if indices.dtype in (torch.uint16, torch.uint32, torch.uint64) else indices
        if not self.on_cpu:
            torch._assert_async(((wide >= 0) & (wide < limit)).all())
            return
        low, high = (int(n) for n in torch.aminmax(wide))
        if low < 0 or high >= limit:
            where = tuple(torch.nonzero((wide < 0) | (wide >= limit))[0].tolist())
            steps = [(s.start or 0, s.step or 1) for s in slices] or [(0, 1)] * len(where)
            place = tuple(start + n * step for n, (start, step) in zip(where, steps, strict=True))
            message = (
                f"{self.given[position].name}: expected indices from 0 to {limit - 1} (they index {into}), "
                f"got {int(wide[where])} at {place}"
            )
            raise self.refuse("launch.index-range", message, IndexError)

    def check_number(self, a: Argument, value: object) -> None:
        """Raise for an integer that overflows its argument's dtype."""
        if a.kind.is_floating_point or a.dtype == "bool":
            return
        limits = torch.iinfo(a.kind)
        if not limits.min <= value <= limits.max:
            raise self.refuse("launch.dtype", f"{a.name}: expected a {a.dtype}, got {value}", ValueError)

    def refused(self, given: Sequence[object]) -> None:
        """Raise the errors of a call with these arguments."""
        found = self.misfit(given)
        if found is not None:
            raise found from None
        if self.dims:
            self.here(given).refused(given)
            return
        for a, value in zip(self.given, given, strict=True):
            if a.role == "scalar":
                self.check_number(a, value)
        for position, limit, into, part in self.gathers:
            self.check_gather(position, given[position], limit, into, part)

    def fits(self, given: Sequence[object]) -> bool:
        """True if dtypes, shapes and device match this kernel."""
        if self.dims:
            return self.misfit(given) is None
        pairs = zip(self.given, given, strict=True)
        return all(a.role == "scalar" or self.fits_one(a, v) for a, v in pairs)

    def fits_one(self, a: Argument, value: torch.Tensor) -> bool:
        """True if a tensor matches argument ``a``, on this device or without memory."""
        return value.dtype is a.kind and tuple(value.shape) == a.shape and self.could_be_here(value)

    def could_be_here(self, value: torch.Tensor) -> bool:
        """True if a tensor is on this device or without memory ("meta")."""
        return value.device.type == "meta" or self.is_here(value)

    def misfit(self, given: Sequence[object]) -> Exception | None:
        """Exception for the first argument that does not fit, None if all do."""
        if self.dims:
            try:
                return self.here(given).misfit(given)
            except (ValueError, TypeError) as error:
                return error
        return self.unlike(given)

    def unlike(self, given: Sequence[object]) -> Exception | None:
        """Exception for the first argument that does not fit, disregarding extents declared as dims; None if
        all fit.
        """
        meta = all(v.device.type == "meta" for v in given if isinstance(v, torch.Tensor))
        for a, value in zip(self.given, given, strict=True):
            if a.role == "scalar":
                continue
            if not isinstance(value, torch.Tensor) or value.is_nested or value.layout is not torch.strided:
                message = f"{a.name}: expected a dense tensor, got {form(value)}"
                return self.refuse("launch.type", message, TypeError)
            if value.dtype is not a.kind:
                got = str(value.dtype).removeprefix("torch.")
                return self.refuse("launch.dtype", f"{a.name}: expected dtype {a.dtype}, got {got}", TypeError)
            if len(value.shape) != len(a.shape) or any(
                n != m for n, m in zip(value.shape, a.shape, strict=True) if not isinstance(m, str)
            ):
                return self.refuse("launch.shape", self.another_shape(a, value), ValueError)
            if not meta and not self.is_here(value):
                message = f"{a.name}: expected a tensor on {self.device}, got one on {value.device}"
                return self.refuse("launch.device", message, ValueError)
        return None

    def another_shape(self, a: Argument, value: torch.Tensor) -> str:
        """Error message for a wrong shape."""
        wanted = f"({', '.join(map(str, a.shape))}{',' * (len(a.shape) == 1)})"
        return f"{a.name}: expected shape {wanted}, got {tuple(value.shape)}"

    def traced(self, given: Sequence[object]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Empty results for tracing, with dtype, shape, strides and device."""
        if self.dims:
            return self.here(given).traced(given)
        found = self.misfit(given)
        if found is not None:
            raise found
        where = next((v.device for v in given if isinstance(v, torch.Tensor)), self.device)
        made = tuple(torch.empty(a.shape, dtype=a.kind, device=where) for a in self.results)
        return made[0] if len(made) == 1 else made


def form(value: object) -> str:
    """Description of a value that is no dense tensor."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return "a nested one" if value.is_nested else f"one with the layout {value.layout}"


class Packs:
    """Cache of packed constant inputs (weights), valid while the inputs are alive and unmodified.

    Modifications are noticed by tensor version and by optimizer steps. After other writes (NumPy, ``.data``), pass a
    new tensor or call ``torch.autograd.graph.increment_version``.
    """

    def __init__(
        self,
        held: Sequence[int],
        taken: Callable[[Sequence[torch.Tensor]], tuple[list[torch.Tensor | None], list[object]]],
        pack: Callable[[Sequence[object]], object],
    ) -> None:
        self.held, self.taken, self.pack = tuple(held), taken, pack
        self.kept: dict[Any, tuple[Any, Any, Any]] = {}
        self.one = self.held[0] if len(self.held) == 1 else None
        if not _hooks:
            _hooks.append(register_optimizer_step_post_hook(torch._disable_dynamo(forget)))
        _packs.add(self)

    def of(self, given: Sequence[torch.Tensor]) -> object:
        """Packed inputs for a call; None if uncacheable (inference-mode tensors have no version)."""
        key: Any
        state: Any
        if self.one is not None:
            t = given[self.one]
            if t.is_inference():
                return None
            key, state = (t.data_ptr(), t.stride()), (t.untyped_storage()._cdata, t._version)
        else:
            tensors = [given[n] for n in self.held]
            if any(t.is_inference() for t in tensors):
                return None
            key = tuple((t.data_ptr(), t.stride()) for t in tensors)
            state = tuple((t.untyped_storage()._cdata, t._version) for t in tensors)
        found = self.kept.get(key)
        if found is None or found[0] != state:
            found = self.made(given, key, state)
        return found[2]

    def made(
        self, given: Sequence[torch.Tensor], key: object, state: object
    ) -> tuple[object, list[StorageWeakRef], object]:
        """Pack inputs, and drop entries of dead tensors."""
        tensors, buffers = self.taken(given)
        packed = self.pack(buffers)
        del tensors  # which were worked on
        for old in [k for k, (_, refs, _) in list(self.kept.items()) if any(r.expired() for r in refs)]:
            self.kept.pop(old, None)
        # the reference keeps the number of a storage from being used again, not its memory
        references = [StorageWeakRef(given[n].untyped_storage()) for n in self.held]
        found = self.kept[key] = state, references, packed
        return found


_packs: WeakSet[Packs] = WeakSet()
_hooks: list[Any] = []


def forget(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Optimizer hook: invalidate packed versions of its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.layout is torch.strided]
    written = {p.untyped_storage()._cdata for p in parameters}
    for packs in list(_packs):
        for key, (_, references, _) in list(packs.kept.items()):
            if any(r.cdata in written for r in references):
                packs.kept.pop(key, None)
