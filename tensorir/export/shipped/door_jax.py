"""The kernel of this folder for JAX; needs jax 0.5 or newer, and for arrays of a GPU cupy.

import FOLDER                        # its parent on sys.path
y = FOLDER.call(a, b)                # arrays of JAX or NumPy, of the shapes and types of manifest.json; by name as well
jax.jit(FOLDER.call)(a, b)
jax.vmap(FOLDER.call)(many, others)  # one call for all of them; inputs that are not mapped are not copied
jax.grad(lambda a: FOLDER.call(a, b).sum())(a)   # where the folder was written with kernels for gradients
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).resolve().parent
DTYPES = {"float8_e4m3": "float8_e4m3fn"}
"""Names of element types that are others in JAX."""
REGISTERED: dict[tuple[str, str], dict[str, tuple[int, Any]]] = jax.__dict__.setdefault("_tensorir_targets", {})
"""Registrations with XLA in this process, of all folders: target and platform -> handlers of the operator."""


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = sibling("common")


def missing() -> str:
    """Reason why the kernel cannot run here; "" if it can."""
    if not hasattr(jax, "ffi"):
        return f"jax 0.5 or newer is needed, this is {jax.__version__}"
    manifest = common.read_manifest()
    try:
        found = platforms(manifest)
    except ImportError as error:
        return str(error)
    if "cpu" not in found and jax.default_backend() != "gpu":
        return f"the kernel is for GPUs, and JAX runs on the {jax.default_backend()} here"
    return ""


def platforms(manifest: dict[str, Any]) -> dict[str, str]:
    """{XLA platform: language of the program for it}; ImportError if the CPU's program cannot be built."""
    languages = [manifest["language"], *manifest.get("bodies", {})]
    found = {"CUDA": "cuda"} if "cuda" in languages else {}
    if "c" in languages:
        try:
            sibling("build").library(manifest)
            found["cpu"] = "c"
        except ImportError:
            if "opencl" not in languages or importlib.util.find_spec("pyopencl") is None:
                raise
            found["cpu"] = "opencl"
    return found


def dtype_of(p: dict[str, Any]) -> np.dtype:
    """JAX dtype of an argument."""
    kind: np.dtype[Any] = jnp.dtype(DTYPES.get(p["dtype"], p["dtype"]))
    return kind


class Operator:
    """A kernel as a function of JAX arrays.

    manifest: of its folder, with what a program says of itself
    handlers: by XLA's platform, the address of a function by XLA's interface, and what has to live as long as it
    target:   what XLA is to call it
    backward: by input, the operator that computes its gradient: it takes inputs and outputs of this one by their names,
              and the gradient that comes in as ``d_<output>``
    batched:  operators for several items at once: by how many, and of which inputs there are several
    """

    def __init__(
        self,
        manifest: dict[str, Any],
        handlers: dict[str, tuple[int, object]],
        target: str,
        backward: dict[str, Operator] | None = None,
        batched: dict[tuple[int, tuple[str, ...]], Operator] | None = None,
    ) -> None:
        self.name = manifest["name"] if "operator" not in manifest else manifest["operator"]
        self.manifest = manifest
        self.inputs = [p for p in manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in manifest["arguments"] if p["role"] == "output"]
        self.names = names(manifest)
        self.platforms = tuple(handlers)
        for platform, (address, _) in handlers.items():
            REGISTERED[target, platform] = handlers  # XLA may call it until the process ends
            jax.ffi.register_ffi_target(target, capsule(address), platform=platform)
        self.dims = manifest.get("dims", ())
        self.target = target
        self.backward = backward or {}
        self.batched = batched or {}
        self.once: Any = self.mapped() if self.batched else self.plain
        self.run = jax.jit(self.differentiable() if self.backward else self.once)

    def mapped(self) -> Any:
        """``plain`` wrapped with a vmap rule that uses batch kernels."""
        made: Any = jax.custom_batching.custom_vmap(self.plain)
        made.def_vmap(self.map)
        return made

    def map(self, items: int, there: Sequence[bool], *arrays: object) -> tuple[object, object]:
        """vmap rule: results over ``items`` and a flag per result that it is batched. there: flags per input"""
        several = tuple(name for name, many in zip(self.names, there, strict=True) if many)
        if one := self.batched.get((items, several)):
            given = dict(zip(self.names, arrays, strict=True))
            made = one.run(*(given[name] for name in one.names))
        else:
            made = jax.vmap(self.plain, in_axes=tuple(0 if many else None for many in there), axis_size=items)(*arrays)
        return made, jax.tree.map(lambda _: True, made)

    def plain(self, *arrays: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
        """Call the kernel on validated arrays."""
        given = [
            a.astype(jnp.float32) if p["role"] == "scalar" and "passed_as" in p else a
            for p, a in zip(self.inputs, arrays, strict=True)
        ]
        # "expand_dims": the kernel's C side runs once for each item, and reads what is not mapped where it is
        told = self.told(arrays)
        results = [jax.ShapeDtypeStruct(self.shape(p, told), dtype_of(p)) for p in self.outputs]
        made = jax.ffi.ffi_call(self.target, results, vmap_method="expand_dims")(*given)
        return tuple(made) if len(results) > 1 else made[0]

    def differentiable(self) -> Any:
        """``plain`` wrapped with a gradient rule."""
        made: Any = jax.custom_vjp(self.once)
        made.defvjp(self.forward, self.gradients, symbolic_zeros=True)
        return made

    def forward(self, *given: Any) -> tuple[object, object]:
        """(results, residuals for the gradients); raises for an input that requires a gradient but has no kernel."""
        for p, a in zip(self.inputs, given, strict=True):
            if a.perturbed and p["name"] not in self.backward:
                have = ", ".join(self.backward)
                message = f"{self.name}: no gradient of {p['name']}, of {have} only; jax.lax.stop_gradient({p['name']})"
                raise NotImplementedError(message)
        arrays = [a.value for a in given]
        results = self.once(*arrays)
        return results, (arrays, [a.perturbed for a in given], several(results))

    def gradients(self, kept: Any, incoming: object) -> tuple[jax.Array | None, ...]:
        """Gradient per input, None if not required."""
        arrays, asked, results = kept
        known = dict(zip(self.names, arrays, strict=True))
        for p, result, given in zip(self.outputs, results, several(incoming), strict=True):
            zero = isinstance(given, jax.custom_derivatives.SymbolicZero)
            known |= {p["name"]: result, f"d_{p['name']}": jnp.zeros(given.shape, given.dtype) if zero else given}
        return tuple(
            self.backward[name](*(known[taken] for taken in self.backward[name].names)) if wanted else None
            for name, wanted in zip(self.names, asked, strict=True)
        )

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Run on arrays in the order of ``inputs``; an array, or a tuple when there are several outputs."""
        return self.run(*self.taken(arrays, named))

    def taken(self, arrays: Sequence[object], named: dict[str, object]) -> list[jax.Array]:
        """Arguments in order, converted to arrays; raises if one does not fit."""
        wrong = [name for name in named if name not in self.names[len(arrays) :]]
        if wrong or len(arrays) + len(named) != len(self.names):
            got = ", ".join(wrong) if wrong else f"{len(arrays) + len(named)} arguments"
            raise TypeError(f"{self.name} takes {', '.join(self.names)}, got {got}")
        every = [*arrays, *(named[name] for name in self.names[len(arrays) :])]
        told = self.told(every)
        return [self.fitting(p, a, self.shape(p, told)) for p, a in zip(self.inputs, every, strict=True)]

    def told(self, arrays: Sequence[object]) -> dict[str, Any]:
        """{dim: value} from array shapes, numbers or symbols of ``jax.export``."""
        if not self.dims:
            return {}
        pairs = zip(self.inputs, arrays, strict=True)
        found, faults = common.extents().told([(p["name"], p["shape"], getattr(a, "shape", ())) for p, a in pairs])
        for d in self.dims:
            n, where = found.get(d["name"], (d["low"], ""))
            if not faults and isinstance(n, int) and not d["low"] <= n <= d["high"]:
                faults = [f"{where}: {d['name']} is {d['low']} to {d['high']}, got {n}"]
        if faults:
            raise ValueError(faults[0])
        return {d["name"]: found.get(d["name"], (d["low"], ""))[0] for d in self.dims}

    def shape(self, p: dict[str, Any], told: dict[str, Any]) -> tuple[Any, ...]:
        """Shape of an argument at given dims."""
        shape = tuple(p["shape"])
        return tuple(common.extents().values(shape, told)) if self.dims else shape

    def fitting(self, p: dict[str, Any], a: object, shape: tuple[Any, ...]) -> jax.Array:
        """One validated argument; only Python numbers are converted."""
        kind = dtype_of(p)
        if p["role"] == "scalar" and isinstance(a, bool | int | float):
            whole = np.issubdtype(kind, np.integer) or kind == np.bool_
            if whole and (isinstance(a, float) or not holds(kind, a)):
                raise TypeError(f"{p['name']}: expected a {p['dtype']} number, got {a!r:.40}")
            a = np.array(a, kind)
        if not hasattr(a, "dtype") or not hasattr(a, "shape") or isinstance(a, np.ma.MaskedArray):
            raise TypeError(f"{p['name']}: expected an array of {p['dtype']}, got {type(a).__name__}")
        if a.dtype != kind:
            raise TypeError(f"{p['name']}: expected {p['dtype']}, got {a.dtype}")
        if tuple(a.shape) != shape:
            raise ValueError(f"{p['name']}: expected shape {shape}, got {tuple(a.shape)}")
        if jax.dtypes.canonicalize_dtype(kind) != kind:
            message = f"{p['name']}: JAX makes {kind} narrower; jax.config.update('jax_enable_x64', True) keeps it"
            raise TypeError(message)
        return a


def holds(kind: np.dtype, number: int) -> bool:
    """True if integer ``number`` fits dtype ``kind``."""
    low, high = (0, 1) if kind == np.bool_ else (np.iinfo(kind).min, np.iinfo(kind).max)
    return bool(low <= number <= high)


def several(results: object) -> tuple[jax.Array, ...]:
    """Results as a tuple, a single one too."""
    return results if isinstance(results, tuple) else (results,)


@functools.cache
def operator() -> Operator:
    """This folder's Operator, created once."""
    why = missing()
    if why:
        raise ImportError(why)
    manifest = common.read_manifest()
    found = platforms(manifest)
    program = common.program_in(next(iter(found.values())), manifest)
    # XLA knows one function by a name: that of these very files, wherever they are, since exported functions keep it
    digest = hashlib.sha256(str(program["files"]).encode()).hexdigest()
    target = f"{manifest['operator'].replace('::', '_')}_{digest[:16]}"
    handlers = REGISTERED.get((target, next(iter(found)))) or {
        platform: handler(manifest, language) for platform, language in found.items()
    }
    backward = {
        of: sibling(f"{about['folder']}/door_jax").operator() for of, about in program.get("backward", {}).items()
    }
    batched = {
        (about["items"], tuple(n for n in names(program) if n in about["mapped"])):
            sibling(f"{about['folder']}/door_jax").operator()
        for about in program.get("batched", ())
    }  # fmt: skip
    return Operator(program, handlers, target, backward, batched)


def names(program: dict[str, Any]) -> list[str]:
    """Argument names of a program's inputs."""
    return [p["name"] for p in program["arguments"] if p["role"] in ("input", "scalar")]


def handler(manifest: dict[str, Any], language: str) -> tuple[int, object]:
    """(address of the XLA FFI handler for a language's program, object that must stay alive)."""
    if language == "c":
        library = ctypes.CDLL(str(sibling("build").library(manifest)))
        function = ctypes.cast(getattr(library, manifest["jax"]["symbol"]), ctypes.c_void_p)
        return int(function.value or 0), library
    module = sibling("handler_jax")
    run = module.OnHost(manifest) if language == "opencl" else module.OnStream(manifest)
    made = module.Handler(run.about, manifest["jax"]["types"], run, stream=language == "cuda")
    return made.address, made


def capsule(address: int) -> object:
    """A C function address as a PyCapsule."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(address, None, None)


def call(*arrays: object, **named: object) -> object:
    """The kernel on JAX's or NumPy's arrays, inside jax.jit, jax.vmap and, where there are kernels for it, jax.grad."""
    return operator()(*arrays, **named)


def export_checks() -> list[object]:
    """Checks for ``jax.export.export(…, disabled_checks=…)``: with them the kernel may be in what is exported.

    Where that is loaded, a copy of this folder has to be imported and ``operator()`` called before.
    """
    from jax import export

    made = operator()
    return [
        export.DisabledSafetyCheck.custom_call(one.target)
        for one in (made, *made.backward.values(), *made.batched.values())
    ]


class Program:
    """The kernel on NumPy arrays, for the self-test."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = operator().manifest
        self.inputs, self.outputs = operator().inputs, operator().outputs

    def __call__(self, *arrays: object) -> Any:
        """An array, or a tuple when there are several outputs; narrow floats are their bits."""
        with wide(), jax.default_device(device()):
            given = [self.taken(p, a) for p, a in zip(self.inputs, arrays, strict=True)]
            made = several(jax.jit(call)(*given))
            results = tuple(self.given(p, np.asarray(a)) for p, a in zip(self.outputs, made, strict=True))
        return results[0] if len(results) == 1 else results

    def taken(self, p: dict[str, Any], a: Any) -> jax.Array:
        kind = dtype_of(p)
        if p["role"] == "scalar":
            return jnp.asarray(a, kind)
        return jnp.asarray(a.view(kind) if a.dtype != kind else a)

    def given(self, p: dict[str, object], a: np.ndarray) -> np.ndarray:
        return a.view(f"uint{8 * a.itemsize}") if p["dtype"] in ("bfloat16", "float8_e4m3", "float8_e5m2") else a


def device() -> jax.Device:
    """JAX device for the self-test."""
    first = jax.devices()[0]
    there = ("CUDA" if first.platform == "gpu" else "cpu") in operator().platforms
    return first if there else jax.devices("cpu")[0]


def wide() -> Any:
    """Context manager that enables 64-bit types."""
    with contextlib.suppress(AttributeError):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()
