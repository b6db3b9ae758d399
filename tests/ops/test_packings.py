"""Kernels that transform filters and pack operands read and write vectors, whatever the order of what they read."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field

TARGET = tir.Target.parse("opencl -registers=32 -vector_bytes=64")
CASES = {
    "NCHW filters": ("cpu_winograd", "U_kernel", dict(m=2), dict(layout="NCHW")),
    "NHWC filters": ("cpu_winograd", "U_kernel", dict(m=4), dict(layout="NHWC")),
    "NCHW weights": ("cpu_tile_turned", "w_packed_kernel", dict(pack="kernel"), dict(layout="NCHW")),
    "NHWC weights": ("cpu_tile_column", "w_packed_kernel", dict(pack="kernel"), dict(layout="NHWC")),
    "b with a ragged end": ("cpu_tile_column", "b_packed_kernel", dict(pack="kernel"), dict(n=37)),
    "b transposed": ("cpu_tile_column", "b_packed_kernel", dict(pack="kernel"), dict(tb=True)),
    "a transposed": ("cpu_tile_column", "a_packed_kernel", dict(pack_a=1), dict(ta=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_packing_kernels_are_in_vectors_and_exact(name):
    template, kernel, pinned, options = CASES[name]
    if "layout" not in options:
        work = tir.ops.matmul(**{"m": 16, "n": 32, "k": 24, **options})
    else:
        work = tir.ops.conv2d(c=16, h=6, w=6, k=16, r=3, s=3, pad=1, **options)
    space = work.templates[template].space_for(TARGET).pin(**pinned)
    s = work.schedule(space.default, template=template, target=TARGET)
    lines = s.source().splitlines()
    begin = next(i for i, line in enumerate(lines) if f"void {kernel}" in line)
    body = "\n".join(lines[begin : lines.index("}", begin)])
    assert "not in vectors" not in body
    assert ("tir_transpose_8x8(" in body) is (name != "b with a ragged end")
    assert "float16" in body or "float8" in body
    assert compare(s, Field(), 1) is None


def test_constants_alone_are_packed_once():
    """``prepack`` is said of b: a is packed in each launch, for it may have changed."""
    w = tir.ops.matmul(m=32, n=32, k=32, ta=True, prepack=True)
    space = w.templates["cpu_tile_column"].space_for(tir.Target.parse("c"))
    s = w.schedule({**space.default, "pack_a": 1}, "cpu_tile_column", "c")
    once = [k.name for k in s.emitted().kernels if k.once]
    assert once and all("b_packed" in name for name in once)
    a, b = np.arange(1024, dtype="float32").reshape(32, 32) % 7, np.ones((32, 32), "float32")
    out = np.zeros((32, 32), "float32")
    launch = s.build("c").bind(a, b, out=out)
    launch()
    a += 1
    launch()
    np.testing.assert_array_equal(out, a.T @ b)
