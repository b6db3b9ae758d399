"""assume: what each fact changes in the text, at launch and in an exported folder; what a launch checks."""

import json
import subprocess
import sys

import numpy as np
import pytest
from refusal_cases import gather, plain

import tensorir as tir
from tensorir.codec import decode, encode
from tensorir.codegen.source import Assumed, Source
from tensorir.runtime.device import devices

needs_device = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


def test_the_text_says_how_arguments_are_aligned():
    s = plain()
    s.assume("A", align=64).assume("C", align=32)
    text = s.source("opencl")
    assert "__global const float *restrict A __attribute__((align_value(64)))" in text
    assert "__global float *restrict C __attribute__((align_value(32)))" in text
    assert "B __attribute__" not in text
    cuda = s.source("cuda")
    assert "A = (const float *)__builtin_assume_aligned(A, 64);" in cuda
    assert "C = (float *)__builtin_assume_aligned(C, 32);" in cuda
    assert {p.name: p.align for p in s.emitted().params} == {"A": 64, "B": 4, "C": 32}
    assert s.check()


def test_an_element_is_always_as_aligned_as_itself():
    s = plain()
    s.assume("A", align=4)
    assert "align_value" not in s.source()


def test_a_range_spares_the_scan_that_it_makes_needless_and_no_other():
    assert len(gather().emitted().gathers) == 1
    for facts, left in (({"low": 0, "high": 7}, 0), ({"low": 1, "high": 6}, 0), ({"low": 0}, 1), ({"high": 7}, 1),
                        ({"low": 0, "high": 8}, 1), ({"low": -1, "high": 7}, 1)):  # fmt: skip
        s = gather()
        s.assume("at", **facts)
        assert len(s.emitted().gathers) == left, facts
        assert s.check()
    s = gather()
    s.assume("at", low=0).assume("at", high=7)
    assert s.emitted().gathers == ()
    assert s.emitted().assumed == (Assumed("at", 0, 0, 7),)


def test_an_unsigned_index_needs_no_low():
    T, at = tir.placeholder((7,), name="T"), tir.placeholder((5,), "uint8", name="at")
    s = tir.Schedule(tir.compute((5,), lambda i: T[at[i]], name="G"))
    s.assume("at", high=7)
    assert s.emitted().gathers == ()


def test_facts_are_in_the_tree_the_trace_and_the_source_as_data():
    s = gather()
    s.assume("T", align=64).assume("at", low=0, high=7)
    assert "  assume T aligned to 64 bytes\n  assume 0 <= at < 7\n" in s.tree()
    assert str(s.trace) == "s.assume('T', align=64)\ns.assume('at', low=0, high=7)"
    assert tir.replay(s.outputs, s.trace.to_json()).source() == s.source()
    source = s.emitted()
    assert decode(Source, json.loads(json.dumps(encode(source)))) == source
    s.undo(2)
    assert "assume" not in s.tree()


@needs_device
def test_launches_check_alignment_and_trust_ranges():
    table = np.arange(56, dtype="float32").reshape(7, 8)
    index = np.array([3, 0, 6, 6, 1], "int32")
    s = gather()
    s.assume("T", align=64).assume("at", low=0, high=7)
    f = s.build()
    raw = np.empty(64 + 56, "float32")
    for shift in range(0, 64, 4):  # host arrays at any address are copied where they must be
        start = (-raw.ctypes.data % 64 + shift) // 4
        held = raw[start : start + 56].reshape(7, 8)
        held[...] = table
        np.testing.assert_array_equal(f(held, index), table[index] * 2)
    with pytest.raises(tir.LaunchError) as caught:
        gather().build()(table, index + 1)
    assert caught.value.code == "launch.index-range"
    tir.Schedule(s.outputs).assume(
        "at", low=0, high=6
    ).build()  # (would read table[6]: within the table, so safe to run)
    f.bind(table, index)()


@needs_device
def test_device_arrays_that_start_elsewhere_are_refused():
    cl, array = pytest.importorskip("pyopencl"), pytest.importorskip("pyopencl.array")
    x = tir.placeholder((8,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: x[i] + 1, name="Y"))
    f = s.assume("X", align=64).build()
    queue = cl.CommandQueue(f.device.context)
    whole = array.arange(queue, 40, dtype=np.float32)
    f(whole[:8])
    with pytest.raises(tir.LaunchError) as caught:
        f(whole[4:12])
    assert caught.value.code == "launch.alignment"


@needs_device
def test_exported_folders_carry_them(tmp_path):
    s = gather()
    s.assume("T", align=64).assume("at", low=0, high=7)
    where = s.build().export(tmp_path / "out", ["source", "pyopencl"])
    manifest = json.loads((where / "manifest.json").read_text())
    assert manifest["gathers"] == []
    assert manifest["assumed"] == [{"param": "T", "align": 64}, {"param": "at", "low": 0, "high": 7}]
    assert {a["name"]: a["align"] for a in manifest["arguments"]}["T"] == 64
    text = (where / "README.md").read_text()
    assert "* `T` starts at a multiple of 64 bytes\n* 0 <= each element of `at` < 7, which nothing checks\n" in text
    command = [sys.executable, "-I", str(where / "selftest.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, pyopencl.array as ca
from loader import Program
program = Program()
t, at = np.arange(56, dtype=np.float32).reshape(7, 8), np.array([0, 6, 3, 3, 1], np.int32)
assert np.array_equal(program(t, at), t[at] * 2)
d = ca.to_device(program.queue, np.arange(88, dtype=np.float32)).reshape(11, 8)
assert np.array_equal(program(d[4:], ca.to_device(program.queue, at)).get(), t[at] * 2 + 64)
try:
    program(d[1:8], ca.to_device(program.queue, at))
except ValueError as e:
    assert "aligned to 64" in str(e)
else:
    raise SystemExit("an array that starts at byte 32 was accepted")
"""
    command = [sys.executable, "-c", code, str(where)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_cuda_text_with_facts_compiles_and_runs_on_the_cpu():
    s = gather("cuda")
    s.bind("G.i", "block.x").assume("T", align=64).assume("at", low=0, high=7)
    assert s.check(level="emulate")
