"""Random schedules of computations whose extents are dims: refused in the proper way, or right for every value."""

import itertools

import numpy as np
import pytest
import random_schedules as drawn
from hypothesis import given
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare_module
from tensorir.check.resize import module_at, schedule_at
from tensorir.check.verdict import compare_results
from tensorir.errors import LoweringError, TensorIRError
from tensorir.expr.program import dims_of
from tensorir.expr.reread import with_dims
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.lower.pipeline import lower

HIGHS = (1, 3, 4, 7, 8, 12, 16)


def declared(c, names=tuple(drawn.ZOO)):
    """A computation with dims for some of its extents, or None where its declaration is not true for all of them."""
    case = drawn.draw_case(c, names)
    kinds = [c.pick((True, True, False)) for _ in case.extents]
    highs = [c.pick(HIGHS) for _ in case.extents]
    made = [tir.dim(f"d{n}", low=1, high=high) if kind else extent
            for n, (kind, high, extent) in enumerate(zip(kinds, highs, case.extents, strict=True))]  # fmt: skip
    try:
        outputs = drawn.ZOO[case.name].make(*made, case.dtype)
    except TensorIRError as e:
        assert not e.code.startswith("declare.truth") or case.name == "conv2d", f"{case.name}: {e}"
        return None
    except TypeError:  # a shape that the computation makes with Python's own functions
        return None
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return (case, tir.Schedule(outputs, case.target)) if dims_of(outputs) else None


def values_of(s):
    """Extents at both ends of each range, and between."""
    sides = [sorted({v.bounds[0], (v.bounds[0] + v.bounds[1]) // 2, v.bounds[1]}) for v in dims_of(s.outputs)]
    points = list(itertools.product(*sides))
    chosen = points if len(points) <= 4 else [points[0], points[-1], points[len(points) // 2], points[1]]
    return [dict(zip(dims_of(s.outputs), p, strict=True)) for p in chosen]


def scheduled(c, case, s, calls):
    for _ in range(calls):
        call = drawn.draw_call(c, s)
        if drawn.apply(s, call):
            case.calls.append(call)


def interpreted(case, s):
    """Nothing if the kernels, lowered once, mean what is declared at each value; what lowering refuses otherwise."""
    try:
        module = lower(s.program, s.target)
        text = s.source()
    except LoweringError as e:
        assert e.code in {*drawn.EXPECTED_LOWERING, "dim.untold", "dim.constant", "lower.pipeline"}, f"{case}\n{e}\n{s}"
        return e.code
    for dims in values_of(s):
        problem = compare_module(module_at(module, dims), with_dims(s.outputs, dims), Field(), 1)
        assert problem is None, f"{dims}\n{case}\n{problem}\n{s}\n{text}"
    return ""


@given(data=st.data())
def test_right_for_every_extent(data):
    class Drawn:
        def pick(self, items):
            return items[data.draw(st.integers(0, len(items) - 1))]

    found = declared(Drawn())
    if found is not None:
        scheduled(Drawn(), *found, data.draw(st.integers(0, 8)))
        interpreted(*found)


@pytest.mark.parametrize("seed", range(40))
def test_right_for_every_extent_after_many_steps(seed):
    c = drawn.Chance(30_000_000 + seed)
    found = declared(c)
    if found is not None:
        scheduled(c, *found, 14)
        interpreted(*found)


def arrays_at(s, dims):
    return random_arguments(with_dims(s.outputs, dims), 3)


def agrees(case, s, dims, arrays, got):
    at = schedule_at(s, dims)
    want = evaluate(at.outputs, arrays)
    verdict = compare_results(at.outputs, got, want)
    assert verdict, f"{dims}\n{case}\n{verdict}\n{s}\n{s.source()}"


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("device", ["opencl", "c"])
def test_devices_agree_with_numpy(seed, device):
    c = drawn.Chance(40_000_000 + seed)
    found = declared(c)
    if found is None or found[1].target.text != "opencl":
        return
    case, s = found
    scheduled(c, case, s, 8)
    if interpreted(case, s):
        return
    try:
        f = s.build(device)
    except TensorIRError as e:
        assert e.code in ("lower.c-threads", "device.no-compiler", "device.no-opencl"), f"{case}\n{e}"
        return
    for dims in values_of(s):
        arrays = arrays_at(s, dims)
        got = f(*arrays)
        agrees(case, s, dims, arrays, got if isinstance(got, tuple) else (got,))


@pytest.mark.parametrize("seed", range(8))
def test_cuda_text_agrees_with_numpy(seed):
    c = drawn.Chance(50_000_000 + seed)
    found = declared(c, [n for n in drawn.ZOO if "int32" in drawn.ZOO[n].dtypes])
    if found is None:
        return
    case, s = found
    s = tir.Schedule(s.outputs, "cuda")
    scheduled(c, case, s, 6)
    if interpreted(case, s):
        return
    for dims in values_of(s)[:2]:
        arrays = arrays_at(s, dims)
        done = emulate(s.emitted().at({v.name: n for v, n in dims.items()}), arrays)
        assert not done.problems, f"{dims}\n{case}\n{done.problems}\n{s}"
        agrees(case, s, dims, arrays, [np.asarray(x) for x in done.outputs])
