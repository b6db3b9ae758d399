"""The first product of a sum replaces what its registers hold: no thread sets them to 0 before."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from products import given, specialised
from test_roles import proved

from tensorir.check.emulate import emulate
from tensorir.errors import DeviceError
from tensorir.ir.build import binary, const
from tensorir.ir.tree import IntrinCall, Var
from tensorir.ir.visit import Rewriter, find
from tensorir.runtime import cuda

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
KERNELS = {
    "one tile": {},
    "resident": dict(blocks=2, store=True),
    "cluster": dict(blocks=1, cluster=2),
}


class Otherwise(Rewriter):
    """Products that add, or do not, on another condition."""

    def __init__(self, change):
        self.change = change

    def on_IntrinCall(self, n):
        return n.replace(adds=tuple(map(self.change, n.adds)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_thread_clears_accumulators(kernel):
    s = specialised(512, 128, 192, **KERNELS[kernel])
    text = s.source()
    assert re.search(r"tir_wgmma_m64\w+\(c, .*, 0 < k_0 \|\| 0 < k_1\);", text)
    assert "= 0.0f" not in text[text.index("__global__") :]
    assert proved(s) is None


def test_it_is_told_by_the_tree_of_the_kernel():
    calls = []

    def seen(body):
        calls.extend(find(body, IntrinCall, lambda c: c.intrin.later))
        return body

    proved(specialised(128, 64, 128), seen)
    assert [len(c.adds) for c in calls] == [1]


@pytest.mark.parametrize("fault", ["never", "always", "late"])
def test_faults_are_found_before_there_is_text(fault):
    change = {
        "never": lambda e: const(False, "bool"),
        "always": lambda e: const(True, "bool"),
        "late": lambda e: binary("<", const(0), find(e, Var)[-1]),
    }[fault]
    found = proved(specialised(256, 64, 192, blocks=1, store=True), Otherwise(change))
    assert found is not None
    assert found.code == "check.not-equal"


@emulated
@pytest.mark.parametrize(
    ("before", "behind", "code"),
    [
        ("0 < k_0 || 0 < k_1", "1", None),
        ("0 < k_0 || 0 < k_1", "0", None),
        ("0 < k_0 || 0 < k_1", "0 < k_1", None),
        ("0 < k_0 || 0 < k_1", "0 < k_0 || 0 < lane", "wgmma.operand"),
    ],
)
def test_faults_are_found_in_the_text(before, behind, code):
    arrays, want = given(128, 64, 192, "nt", "float16")
    source = specialised(128, 64, 192).emitted()
    got = emulate(source, arrays)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], want)
    text = source.text.replace(before, behind)
    assert text != source.text
    got = emulate(replace(source, text=text), arrays)
    assert code is None or code in {p.code for p in got.problems}
    assert got.problems or not np.array_equal(got.outputs[0], want)


def test_machine_code_has_one_predicate_and_clears_nothing():
    """What the emulator takes for ``scale-d``: the first of four products alone depends on a predicate."""
    pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        text = cuda.sass(cuda.compile_cubin(specialised(256, 128, 512).source(), "sm_90a"))
    except DeviceError as error:
        pytest.skip(error.problems[0].message)
    products = re.findall(r"HGMMA\.\S+ (R\d+), gdesc\[UR\d+\], \1(, !?UP\d)?", text)
    assert [bool(predicate) for _, predicate in products] == [True, False, False, False]
    assert not re.search(r"CS2R R\d+, SRZ", text)
