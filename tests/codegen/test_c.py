"""The C dialect: texts for registers of 64, 32 and 16 bytes, compiled by what is here, against NumPy."""

import ctypes
import itertools
import shutil
import subprocess

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tensorir as tir
from tensorir.errors import LoweringError
from tensorir.runtime.host import flags_here

COMPILERS = [pytest.param(c, marks=pytest.mark.skipif(not shutil.which(c), reason=f"{c} is not installed"))
             for c in ("gcc", "clang-19")]  # fmt: skip
WIDTHS = {64: ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"), 32: ("avx2", "fma"), 16: ()}
STRICT = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def target(width):
    return f"c -vector_bytes={width}"


def compiled(source, folder, compiler, width, more=()):
    if not flags_here() >= set(WIDTHS[width]):
        pytest.skip(f"the processor has no registers of {width} bytes")
    (folder / "k.c").write_text(source.text)
    flags = [*more, *(f"-m{f}" for f in WIDTHS[width])]
    build = [compiler, *STRICT, *flags, "k.c", "-o", "k.so", "-lm"]
    done = subprocess.run(build, check=False, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(folder / "k.so"))


def run(source, arrays, folder, compiler, width, more=()):
    """Every block of every kernel, one after the other."""
    library = compiled(source, folder, compiler, width, more)
    memory = dict(zip([p.name for p in source.inputs], arrays, strict=True))
    for p in source.params:
        if p.role == "constant":
            memory[p.name] = np.frombuffer(p.data, np.uint8)
        elif p.role != "scalar" and p.name not in memory:
            kind = {"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}.get(p.dtype, p.dtype)
            memory[p.name] = np.full(p.shape, 113, kind)
    for k in source.kernels:
        local = np.empty(k.local_bytes + 64, np.uint8)
        at = local.ctypes.data + -local.ctypes.data % 64
        args = (ctypes.c_void_p * len(k.args))(*(memory[a].ctypes.data for a in k.args))
        for place in itertools.product(*map(range, k.grid)):
            getattr(library, f"{k.name}_run")(args, (ctypes.c_int64 * 4)(*place, at))
    return [memory[p.name] for p in source.outputs]


def small(rng, *shape):
    return rng.integers(-4, 5, shape).astype("float32")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_product_is_right_at_each_width(rng, tmp_path, compiler, width):
    s = tir.ops.matmul(m=61, n=84, k=37).schedule(target=target(64))
    a, b = small(rng, 61, 37), small(rng, 37, 84)
    (made,) = run(s.emitted(target(width)), (a, b), tmp_path, compiler, width)
    assert np.array_equal(made, a @ b)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_so_is_a_convolution_whose_tiles_are_turned_around(rng, tmp_path, compiler, width):
    s = tir.ops.conv2d(n=1, c=16, h=19, w=16, k=32, r=3, s=3, pad=1, bias=True).schedule(
        template="cpu_tile_turned", target=target(64)
    )
    x, w, b = small(rng, 1, 16, 19, 16), small(rng, 32, 16, 3, 3), small(rng, 32)
    source = s.emitted(target(width))
    assert ("tir_transpose_8x8" in source.text) == (width > 16)
    (made,) = run(source, (x, w, b), tmp_path, compiler, width)
    views = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    assert np.array_equal(made, np.einsum("nchwrs,kcrs->nkhw", views, w) + b[:, None, None])


def test_large_arrays_of_a_block_are_not_on_the_stack(rng, tmp_path):
    s = tir.Schedule(tir.ops.conv2d(n=1, c=64, h=28, w=28, k=32, r=3, s=3, pad=1).outputs, target(64))
    blocks, _ = s.split("y.k", [None, 16])
    s.bind(blocks, "block.x").compute_at("x_pad", blocks).set_scope("x_pad", "shared")
    source = s.emitted(target(32))
    (k,) = source.kernels
    assert k.local_bytes >= 100_000 and "float *restrict x_pad" in source.text
    x, w = small(rng, 1, 64, 28, 28), small(rng, 32, 64, 3, 3)
    (made,) = run(source, (x, w), tmp_path, "gcc", 32, ("-Wframe-larger-than=24576",))
    views = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    assert np.array_equal(made, np.einsum("nchwrs,kcrs->nkhw", views, w))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_vector_is_wider_than_the_registers(width):
    text = tir.ops.matmul(m=61, n=84, k=37).schedule(target=target(64)).source(target(width))
    assert f"vector_size({width})" in text
    assert not any(f"vector_size({wider})" in text for wider in (32, 64, 128) if wider > width)


def test_blocks_of_several_threads_are_refused():
    A = tir.placeholder((8, 8), name="A")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: A[i, j] + 1, name="C"))
    s.bind("C.i", "block.x").bind("C.j", "thread.x")
    with pytest.raises(LoweringError, match=r"\(8, 1, 1\) threads") as found:
        s.source("c")
    assert found.value.code == "lower.c-threads"
