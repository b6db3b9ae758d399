"""The operator on a GPU, without one: what it passes to CuPy, on which stream. Not yet run on a GPU.

Tensors are stand-ins in host memory which say that they are on "cuda:0", kernels are Python; nothing may wait.
"""

import contextlib
import ctypes
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_stand_in import Kernel, cupy_of, loaded

import tensorir as tir

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
GPU = torch.device("cuda:0")


class OnGPU:
    """A tensor that says it is on a GPU."""

    is_cpu, is_nested, layout, device, requires_grad = False, False, torch.strided, GPU, False

    def __init__(self, host):
        self.host = host

    def __getattr__(self, name):
        assert name in ("dtype", "shape", "is_contiguous", "data_ptr", "numel"), f"{name} may wait for the GPU"
        return getattr(self.host, name)

    def contiguous(self):
        return OnGPU(self.host.contiguous())

    def clone(self):
        return OnGPU(self.host.clone())

    def __ge__(self, other):
        return self.host >= other

    def __lt__(self, other):
        return self.host < other


class OfTorch:
    """The module torch as ``torch_kernel.py`` sees it: what would be on a GPU is a stand-in."""

    def __init__(self):
        self.made, self.entered, self.asserted = [], [], []
        self.cuda = SimpleNamespace(
            current_stream=lambda where: SimpleNamespace(cuda_stream=4000 + where.index),
            device=lambda where: contextlib.closing(SimpleNamespace(close=lambda: self.entered.append(where))),
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, shape, *, dtype, device):
        assert device == GPU
        self.made.append(OnGPU(torch.empty(shape, dtype=dtype)))
        return self.made[-1]

    def _assert_async(self, right):
        self.asserted.append(bool(right))


def folder_of(tmp_path, schedule, name):
    folder = schedule.export(tmp_path / name, to=["torch"], name=f"cuda::{name}")
    return folder, json.loads((folder / "manifest.json").read_text())


def kernel_of(monkeypatch, folder, manifest, compute):
    """The folder's kernel for a GPU, what stands in for torch, and the kernel that CuPy is given."""
    given = Kernel(compute)
    monkeypatch.setitem(sys.modules, "cupy", cupy_of(given))
    body, stand_in = loaded(folder, "torch_body"), OfTorch()
    body.torch_kernel.torch = stand_in
    (made,) = body.kernels(manifest)
    assert made.device == torch.device("cuda")
    return made, stand_in, given


def floats(memory, *shape):
    n = int(np.prod(shape))
    return np.frombuffer((ctypes.c_float * n).from_address(memory.data.ptr), np.float32).reshape(shape)


def test_pointers_and_the_current_stream(monkeypatch, tmp_path):
    x, y = tir.placeholder((5, 3), name="x"), tir.placeholder((5, 3), name="y")
    z = tir.compute((5, 3), lambda i, j: x[i, j] + 2 * y[i, j], name="z")
    folder, manifest = folder_of(tmp_path, tir.Schedule(z, "cuda -arch=sm_80"), "add")
    seen = []

    def add(*given):
        named = dict(zip(manifest["kernels"][0]["args"], given, strict=True))
        seen.append([named[n].data.ptr for n in "xyz"])
        floats(named["z"], 5, 3)[:] = floats(named["x"], 5, 3) + 2 * floats(named["y"], 5, 3)

    kernel, stand_in, given = kernel_of(monkeypatch, folder, manifest, add)
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    made = kernel(OnGPU(a), OnGPU(b))
    assert type(made) is OnGPU and torch.equal(made.host, a + 2 * b)
    assert seen == [[a.data_ptr(), b.data_ptr(), made.host.data_ptr()]], "zero copies"
    assert given.streams == [4000] and stand_in.entered == [GPU] and len(stand_in.made) == 1
    strided = torch.randn(3, 5).t()
    assert torch.equal(kernel(OnGPU(strided), OnGPU(b)).host, strided + 2 * b)
    with pytest.raises(ValueError, match="x: expected a tensor on cuda, got one on cpu"):
        kernel(a, OnGPU(b))
    assert len(given.streams) == 2, "what is refused is not launched"


def test_indices_are_asserted_on_the_gpu_and_numbers_are_passed(monkeypatch, tmp_path):
    x, at = tir.placeholder((5, 3), name="x"), tir.placeholder((4,), "int32", name="at")
    by = tir.scalar("by")
    rows = tir.compute((4, 3), lambda i, j: x[at[i], j] * by, name="y")
    folder, manifest = folder_of(tmp_path, tir.Schedule(rows, "cuda -arch=sm_80"), "rows")

    def gather(*given):
        named = dict(zip(manifest["kernels"][0]["args"], given, strict=True))
        chosen = np.frombuffer((ctypes.c_int32 * 4).from_address(named["at"].data.ptr), np.int32)
        floats(named["y"], 4, 3)[:] = floats(named["x"], 5, 3)[chosen % 5] * named["by"]

    kernel, stand_in, _ = kernel_of(monkeypatch, folder, manifest, gather)
    table, chosen = torch.randn(5, 3), torch.tensor([4, 0, 2, 4], dtype=torch.int32)
    assert torch.equal(kernel(OnGPU(table), OnGPU(chosen), 2.5).host, table[chosen.long()] * 2.5)
    kernel(OnGPU(table), OnGPU(chosen + 1), 2.5)
    assert stand_in.asserted == [True, False], "by an assertion there: nobody waits for the indices"


def test_workspace_is_pytorchs(monkeypatch, tmp_path):
    a, b = tir.placeholder((8, 16), name="a"), tir.placeholder((16, 8), name="b")
    k = tir.reduce_axis(16, name="k")
    half = tir.compute((8, 16), lambda i, j: a[i, j] * 0.5, name="half")
    y = tir.compute((8, 8), lambda i, j: tir.sum(half[i, k] * b[k, j], axis=k), name="y")
    folder, manifest = folder_of(tmp_path, tir.Schedule(y, "cuda -arch=sm_80"), "two")
    (space,) = [p["name"] for p in manifest["arguments"] if p["role"] == "workspace"]
    steps = [k["args"] for k in manifest["kernels"]]
    ran, places = [], set()

    def step(*given):
        named = dict(zip(steps[len(ran) % 2], given, strict=True))
        places.add(named[space].data.ptr)
        ran.append(1)
        if "y" not in named:
            floats(named[space], 8, 16)[:] = floats(named["a"], 8, 16) * 0.5
        else:
            floats(named["y"], 8, 8)[:] = floats(named[space], 8, 16) @ floats(named["b"], 16, 8)

    kernel, stand_in, given = kernel_of(monkeypatch, folder, manifest, step)
    p, q = (torch.randint(-4, 5, s).float() for s in ((8, 16), (16, 8)))
    made = kernel(OnGPU(p), OnGPU(q))
    assert torch.equal(made.host, 0.5 * p @ q) and len(ran) == 2 and given.streams == [4000, 4000]
    assert places == {stand_in.made[1].data_ptr()} and stand_in.made[1].host.dtype == torch.uint8
    assert kernel.workspace_bytes == stand_in.made[1].numel() == 512


def test_the_operator_has_a_kernel_for_cuda_and_traces_there(tmp_path):
    x = tir.placeholder((5, 3), name="x")
    y = tir.compute((5, 3), lambda i, j: x[i, j] + 1, name="y")
    folder, _ = folder_of(tmp_path, tir.Schedule(y, "cuda -arch=sm_80"), "traced")
    op = loaded(folder, "door_torch").op
    assert torch._C._dispatch_has_kernel_for_dispatch_key("cuda::traced", "CUDA")
    with torch._subclasses.FakeTensorMode() as mode:
        made = op(torch.empty(5, 3, device="cuda"))
        assert (made.shape, made.device, type(made).__name__) == ((5, 3), GPU, "FakeTensor") and mode is not None
        with pytest.raises(ValueError, match="x: expected a tensor on cuda, got one on cpu"):
            op(torch.empty(5, 3))
    with pytest.raises(ValueError, match="x: expected a tensor on cuda, got one on cpu"):
        op(torch.empty(5, 3))
