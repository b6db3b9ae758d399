"""Every instruction of the table does on the device what it says it means."""

import numpy as np
import pytest
from embed import embedded

import tensorir as tir
from tensorir.intrin.intrin import intrinsic, known
from tensorir.ir.tree import IntrinCall
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower

pytestmark = pytest.mark.usefixtures("unoptimised")

TABLE = sorted(n for n in known() if n.startswith("opencl."))


def scheduled(name, target="opencl"):
    intrin = intrinsic(name)
    y, loops = embedded(intrin)
    s = tir.Schedule(y, target)
    order = ["r", "t", *loops] if len(s.loops(y)) > 1 + len(loops) and "Y.t" in s.loops(y) else ["r", *loops]
    rest = [a.split(".")[1] for a in s.loops(y) if a.split(".")[1] not in order]
    s[y].reorder(*rest, *order)
    return y, s.tensorize(f"Y.{loops[0]}", name)


def arguments(y, seed=0):
    rng = np.random.default_rng(seed)
    inputs = sorted(y.op.inputs, key=lambda t: t.order)
    return [rng.integers(-8, 9, t.shape).astype(t.dtype) for t in inputs]


@pytest.mark.parametrize("name", TABLE)
def test_does_what_it_means(name, device):
    y, s = scheduled(name)
    plain = tir.Schedule(y, "opencl").build(device)
    given = arguments(y)
    assert np.array_equal(s.build(device)(*given), plain(*given))
    assert find(lower(s.program, s.target).kernels[0].body, IntrinCall)


@pytest.mark.parametrize("name", TABLE)
def test_portable_text_does_what_it_means(name, device):
    """The text for GPUs is OpenCL C like any other: it runs here too."""
    y, s = scheduled(name, "opencl -kind=gpu")
    given = arguments(y, seed=1)
    assert "vload" in s.source() or "_v" not in s.source()
    want = tir.Schedule(y, "opencl").build(device)(*given)
    assert np.array_equal(s.build(device)(*given), want)


@pytest.mark.parametrize("name", TABLE)
def test_meaning_is_checked_exactly(name):
    _, s = scheduled(name)
    assert s.check()


def test_every_entry_names_its_manual():
    for name in TABLE:
        assert known()[name].source.startswith("OpenCL C 3.0, 6."), name
        assert known()[name].name == name


def test_text_of_the_table(golden):
    lines = []
    for name in TABLE:
        _, cpu = scheduled(name)
        _, gpu = scheduled(name, "opencl -kind=gpu")
        lines.append(f"{name}\n  {call_line(cpu.source())}\n  {call_line(gpu.source())}")
    golden("\n".join(lines), "intrin/opencl.txt")


def call_line(source):
    """The lines that the instruction was printed as: what stands in the innermost loop."""
    lines = source.splitlines()
    depth = max(len(x) - len(x.lstrip()) for x in lines if "Y + " in x or "Y[" in x)
    return " ".join(
        x.strip() for x in lines if x.endswith(";") and "init_" not in x and len(x) - len(x.lstrip()) == depth
    )
