"""TVM-FFI's door to CUDA kernels, on a driver that is none: streams, tensors of GPUs and of the host, refusals."""

import ctypes
import json

import numpy as np
import pytest
from fake_cuda import SHAPE
from test_c_host_cuda import Driven, X, Y, added, driver, images_of, kept, scaled

from tensorir.export.shipped import build

__all__ = ["driver"]
pytestmark = [
    pytest.mark.skipif(build.compiler() is None, reason="no C compiler"),
    pytest.mark.usefixtures("unoptimised"),
]
RUNTIME = b"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#undef dlsym
void *dlsym(void *library, const char *name);
static char said[1000];
static int asked[2];
const char *fake_said(void) { return said; }
int fake_asked(int n) { return asked[n]; }
void fake_forget(void) { said[0] = 0, asked[0] = asked[1] = -1; }
static void raise(const char *kind, const char *text) { snprintf(said, sizeof said, "%s: %s", kind, text); }
static void *stream(int device, int id) { return asked[0] = device, asked[1] = id, (void *)(uintptr_t)0x5000; }
void *fake_dlsym(void *library, const char *name) {
  if (!strcmp(name, "TVMFFIErrorSetRaisedFromCStr")) return (void *)raise;
  return strcmp(name, "TVMFFIEnvGetStream") ? dlsym(library, name) : (void *)stream;
}
"""
"""What TVM-FFI's library has, linked with the folder's, so that no other is found in its place."""


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64)]  # fmt: skip


class Any(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("unused", ctypes.c_uint32), ("value", ctypes.c_uint64)]


def tensor(array, address=None, device=2, number=0):
    """An array, at an address of the GPU, or of the host."""
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    code = {"f": 2, "i": 0}[array.dtype.kind]
    place = (array.ctypes.data, 1, 0) if address is None else (address, device, number)
    return Tensor(*place, array.ndim, code, 8 * array.itemsize, 1, shape, None, 0)


@pytest.fixture
def door(tmp_path, driver, monkeypatch):
    def made(part):
        driven = Driven(part, tmp_path / "out", driver, monkeypatch, ["c", "tvm_ffi"])
        names = json.loads((driven.where / "manifest.json").read_text())["library"]["sources"]
        sources = {name: (driven.where / name).read_bytes() for name in names} | {"fake.c": RUNTIME}
        file = tmp_path / "with_runtime.so"
        file.write_bytes(build.compiled(build.compiler(), sources, ["-Ddlsym=fake_dlsym"]))
        library = ctypes.CDLL(str(file))
        library.fake_said.restype = ctypes.c_char_p

        def call(*tensors):
            library.fake_forget()
            given = [t if isinstance(t, Any) else Any(7, 0, ctypes.addressof(t)) for t in tensors]
            code = library["__tvm_ffi_out"](None, (Any * len(given))(*given), len(given), ctypes.byref(Any()))
            return code, library.fake_said().decode()

        call.asked = lambda: [library.fake_asked(n) for n in (0, 1)]
        return driven, call

    return made


def test_tensors_of_a_gpu_on_the_stream_of_the_environment(door):
    driven, call = door(added(images=images_of(("ptx", "compute_80"))))
    text = (driven.where / "README.md").read_text()
    assert "on a GPU, by kernels on TVM-FFI's" in text and "not yet run on a GPU" in text
    a, b, c = driven.device(X), driven.device(Y), driven.device(X)
    assert call(tensor(X, a), tensor(Y, b), tensor(X, c)) == (0, "")
    assert call.asked() == [2, 0]
    made = np.ctypeslib.as_array((ctypes.c_float * X.size).from_address(c)).reshape(SHAPE)
    np.testing.assert_array_equal(made, X + Y)
    lines = kept(driven.calls())
    launches = [x for x in lines if x.startswith("launch")]
    assert len(launches) == 2 and all(x.endswith("on 0x5000") for x in launches)
    assert not [x for x in lines if x.startswith(("copy", "synchronise"))], "nothing is copied or waited for"
    code, said = call(tensor(X, a), tensor(Y, b), tensor(X, c, device=4))
    assert code == -1 and "ValueError: out: C: expected float32" in said and "another device than a GPU" in said
    code, said = call(tensor(X, a), tensor(Y, b, number=1), tensor(X, c))
    assert code == -1 and "out: B: " in said and "a tensor on another GPU than the others" in said
    code, said = call(tensor(X, a), tensor(Y, b), tensor(X, a))
    assert code == -1 and "memory that overlaps A" in said
    assert not kept(driven.calls())


def test_arrays_of_the_host_are_copied(door):
    driven, call = door(added(images=images_of(("ptx", "compute_80"))))
    out = np.empty(SHAPE, "f4")
    assert call(tensor(X), tensor(Y), tensor(out)) == (0, "")
    np.testing.assert_array_equal(out, X + Y)
    assert any(x.startswith("synchronise") for x in driven.calls())


def test_indices_are_looked_at_on_the_host(door):
    driven, call = door(scaled())
    driven.env(FAKE_CC=90)
    rows, out = np.array([8, 0, 1, 2], "i4"), np.empty(SHAPE, "f4")
    a, i, c = driven.device(X), driven.device(rows), driven.device(out)
    two, _ = Any(1, 0, 2), driven.calls()
    code, said = call(tensor(X, a), tensor(rows, i), two, tensor(out, c))
    assert code == -1 and "ValueError: out: I: expected int32 (4,), got indices on a GPU" in said
    code, said = call(tensor(X, a), tensor(rows + 1), two, tensor(out, c))
    assert code == -1 and "IndexError: out: I: an index is not in 0 ... 8" in said and not kept(driven.calls())
    code, said = call(tensor(X, a), tensor(rows), two, tensor(out, c))
    assert code == 0, said
