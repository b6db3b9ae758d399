"""Scans that other compilers got wrong, and scans and scatters on every executor."""

import itertools

import numpy as np
import pytest

import tensorir as tir

DEVICES = ("opencl", "c")
RECURRENCE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="recurrence", commutative=False)


def lanes(s):
    *_, axis = s.loops("S")
    s.vectorize(s.split(axis, [None, 8])[1])


def tiles(s, tile=16):
    s.redeclare("tiled_scan", tile=tile).reverse_compute_inline("S").bind("S_local.t", "block.x")
    s.vectorize(s.split("S_local.u", [None, 8])[1])


FORMS = {"serial": lambda s: None, "lanes": lanes, "tiles": tiles}


def results(outputs, form, arrays):
    """What each executor gives, of a schedule that is proved; arrays: by the names of the inputs."""
    for target in DEVICES:
        s = tir.Schedule(outputs, target=target)
        FORMS[form](s)
        assert target != DEVICES[0] or (verdict := s.check()), str(verdict)
        yield s.build()(*[arrays[b.name] for b in s.program.inputs])
    cuda = tir.replay(outputs, s.trace, target="cuda -arch=sm_80")
    assert (verdict := cuda.check("emulate")), str(verdict)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [64, 128, 130])
def test_a_recurrence_keeps_its_order_beyond_one_warp(n, form):
    """triton#2359: x[i + 1] = x[i] f[i + 1] + x[i + 1] was wrong from the 65th element on, and its operands swapped."""
    F, X = (tir.placeholder((n,), "uint32", name=x) for x in "FX")
    f, x = np.random.default_rng(n).integers(0, 2**32, (2, n), dtype=np.uint64).astype("uint32")
    want, h = [], 0
    for a, b in zip(f.tolist(), x.tolist(), strict=True):
        h = (h * a + b) % 2**32
        want.append(h)
    for _, got in results(tir.scan((F, X), op=RECURRENCE, name="S"), form, {"F": f, "X": x}):
        np.testing.assert_array_equal(got, np.array(want, "uint32"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("valid", "block"), [(8, 8), (32, 32), (29, 32)])
def test_a_cumulative_sum_of_a_mask_inside_of_a_loop(valid, block, form):
    """triton#2361: [1, 2, 3, 4, 4, 4, 4, 4], where the scan stood in a loop over blocks."""
    A = tir.placeholder((3, block), "int32", name="A")
    M = tir.compute((3, block), lambda i, j: tir.where(j < valid, 1, 0) + A[i, j], name="M")
    for got in results(tir.scan(M, axis=1, name="S"), form, {"A": np.zeros((3, block), "int32")}):
        np.testing.assert_array_equal(got, np.tile(np.minimum(np.arange(block) + 1, valid), (3, 1)))


def test_a_discounted_sum():
    """triton#3485: 1, 2.5, 4.25, 6.125 are no scan of a / 2 + b, which is not associative: the check says so, and the
    scan of maps is right.
    """
    V = tir.placeholder((8,), name="V")
    wrong = tir.scan(V, op=tir.combiner(lambda a, b: a * 0.5 + b, 0.0, commutative=False), name="S")
    assert not tir.Schedule(wrong).check()
    for form in ("lanes", "tiles"):
        s = tir.Schedule(wrong)
        lanes(s) if form == "lanes" else s.redeclare("tiled_scan", tile=4)
        assert not s.check()
    G = tir.compute((8,), lambda i: V[i] * 0 + 0.5, name="G")
    v = np.arange(1, 9, dtype="float32")
    want = [1.0]
    for x in v[1:]:
        want.append(want[-1] * 0.5 + x)
    assert want[:3] == [1.0, 2.5, 4.25]
    for form in FORMS:
        outputs = tir.scan((G, V), op=RECURRENCE, name="S")[1]
        for got in results(outputs, form, {"V": v}):
            np.testing.assert_array_equal(got, np.array(want, "float32"))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("exclusive", "reverse"), list(itertools.product((False, True), (False, True))))
def test_states_of_two_values_along_every_axis(axis, exclusive, reverse):
    """triton#2657's kind: several values, either direction, any axis, extents that no vector divides.

    Each form is there with each axis, and with each direction.
    """
    shape = (3, 19, 10)
    F, X = (tir.placeholder(shape, "uint32", name=x) for x in "FX")
    f, x = np.random.default_rng(axis).integers(0, 2**32, (2, *shape), dtype=np.uint64).astype("uint32")
    outputs = tir.scan((F, X), op=RECURRENCE, axis=axis, exclusive=exclusive, reverse=reverse, name="S")
    turned = [np.flip(np.moveaxis(y, axis, 0), 0) if reverse else np.moveaxis(y, axis, 0) for y in (f, x)]
    state, want = (np.ones_like(turned[0][0]), np.zeros_like(turned[0][0])), []
    for a, b in zip(*turned, strict=True):
        after = state[0] * a, state[1] * a + b
        want.append((state if exclusive else after)[1])
        state = after
    want = np.moveaxis(np.flip(want, 0) if reverse else np.array(want), 0, axis)
    form = list(FORMS)[(axis + exclusive + 2 * reverse) % len(FORMS)]
    for _, got in results(outputs, form, {"F": f, "X": x}):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_scatters_on_every_executor(op):
    row, V = tir.placeholder((40,), "int32", name="row"), tir.placeholder((40, 8), "int32", name="V")
    B = tir.scatter((7, 8), over=(40, 8), index=lambda e, c: (row[e], c), value=lambda e, c: V[e, c], op=op, fill=1)
    rng = np.random.default_rng(0)
    r, v = rng.integers(0, 7, 40).astype("int32"), rng.integers(-3, 4, (40, 8)).astype("int32")
    want = np.ones((7, 8), "int32")
    {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op].at(want, r, v)
    for target in DEVICES:
        s = tir.Schedule(B, target=target)
        s.vectorize("B.c")
        assert s.check(), str(s.check())
        np.testing.assert_array_equal(s.build()(r, v), want)
    assert tir.replay(B, s.trace, target="cuda -arch=sm_80").check("emulate")
