"""Every operator on integers, of every type, on the values where types end: NumPy, the reference, the interpreter,
OpenCL, C and the emulated CUDA text say the same. ``python tests/property/test_integer_operators.py`` runs all pairs of
types and as many random expressions as asked for (``--expressions``).
"""

import operator
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import evaluate
from tensorir.interp.run import run
from tensorir.runtime.device import devices

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
MIXED = (("int8", "uint8"), ("uint8", "int32"), ("int16", "uint16"), ("uint32", "int32"), ("uint64", "uint8"),
         ("int64", "uint32"), ("bool", "uint8"), ("uint64", "bool"))  # fmt: skip
BITS = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
SHIFTS = {"<<": operator.lshift, ">>": operator.rshift}


def edges(dtype, rng, count=7):
    """Ends of the type, numbers around powers of two, shifts around its bits, and some at random."""
    if dtype == "bool":
        return np.array([False, True])
    info = np.iinfo(dtype)
    some = {0, 1, 2, 3, 7, info.bits - 1, info.bits, info.bits + 1, info.max, info.max - 1, info.max // 2 + 1}
    some |= {-1, -2, -info.bits, info.min, info.min + 1, -(info.max // 2)} if info.min else set()
    wild = rng.integers(info.min, info.max, count, dtype, endpoint=True)
    return np.concatenate([np.array(sorted(some), dtype), wild])


def arrays(ta, tb, seed=0):
    """All pairs of edges."""
    rng = np.random.default_rng(seed)
    a, b = edges(ta, rng), edges(tb, rng)
    return np.repeat(a, len(b)), np.tile(b, len(a))


def upper_half(a, b):
    kind = np.result_type(a, b)
    if kind.kind == "f":
        raise TypeError("a float has no upper half")
    bits = kind.itemsize * 8
    whole = [int(x) * int(y) >> bits for x, y in zip(a.astype(kind), b.astype(kind), strict=True)]
    return np.array(whole, object).astype(kind)


def cases(ta, tb):
    """(name, declaration on elements, NumPy on arrays) of every operator that the two types have together."""
    kind = np.result_type(np.dtype(ta), np.dtype(tb))
    both = [("==", tir.equal, np.equal), ("<", operator.lt, np.less), ("max", tir.maximum, np.maximum)]
    if kind.kind == "f":
        return both
    if "bool" not in (ta, tb):
        both += [(n, f, f) for n, f in {**BITS, **SHIFTS}.items()]
        both += [("mulhi", tir.mulhi, upper_half)]
    if ta == tb == "bool":
        return [*both, *((n, f, f) for n, f in BITS.items()), ("~", lambda a, b: ~a, lambda a, b: ~a)]
    both += [(n, f, f) for n, f in (("+", operator.add), ("-", operator.sub), ("*", operator.mul))]
    if ta == tb:
        bits = np.iinfo(ta).bits
        fixed = sorted({1, bits // 2, bits - 1})
        both += [("~", lambda a, b: ~a, lambda a, b: ~a), ("-a", lambda a, b: -a, lambda a, b: -a)]
        both += [("abs", lambda a, b: tir.abs(a), lambda a, b: np.abs(a))]
        both += [(f"{n} {k}", lambda a, b, f=f, k=k: f(a, k), lambda a, b, f=f, k=k: f(a, k))
                 for n, f in SHIFTS.items() for k in fixed]  # fmt: skip
        both += [(f"{n} mask", lambda a, b, f=f, k=bits - 1: f(a, b & k), lambda a, b, f=f, k=bits - 1: f(a, b & k))
                 for n, f in SHIFTS.items()]  # fmt: skip
        both += [(f"{n} 5", lambda a, b, f=f: f(a, 5), lambda a, b, f=f: f(a, 5)) for n, f in BITS.items()]
        both += [
            (f"5 {n}", lambda a, b, f=f: f(5, a), lambda a, b, f=f: f(5, a)) for n, f in {**BITS, **SHIFTS}.items()
        ]
        both += [("(a ^ b) & ~b", lambda a, b: (a ^ b) & ~b, lambda a, b: (a ^ b) & ~b)]
        both += [("rotate", lambda a, b: a << 3 | a >> bits - 3, lambda a, b: a << 3 | a >> bits - 3)]
        both += [("//", lambda a, b: a // (b | 1), lambda a, b: a // (b | 1))]
        both += [("%", lambda a, b: a % (b | 1), lambda a, b: a % (b | 1))]
        both += [("a // b < 0", lambda a, b: a // (b | 1) < 0, lambda a, b: a // (b | 1) < 0)]
        both += [("abs >> 1", lambda a, b: tir.abs(a) >> 1, lambda a, b: np.abs(a) >> 1)]
        both += [("min abs", lambda a, b: tir.minimum(tir.abs(a), 2), lambda a, b: np.minimum(np.abs(a), kind.type(2)))]
        both += [("abs ^ 2", lambda a, b: tir.abs(a ^ b) * 2, lambda a, b: np.abs(a ^ b) * 2)]
        both += [("a * a | 1", lambda a, b: (a * a | 1) < 0, lambda a, b: (a * a | 1) < 0)]
        both += [
            ("a + 1 or a", lambda a, b: tir.where(a > b, a + 1, a) >= a, lambda a, b: np.where(a > b, a + 1, a) >= a)
        ]
        both += [("shift by a sum", lambda a, b: a >> (b * b & bits - 1), lambda a, b: a >> (b * b & bits - 1))]
        both += [("~a >> 1", lambda a, b: (~a) >> 1, lambda a, b: (~a) >> 1)]
        both += [("a << 1 < b", lambda a, b: a << 1 < b, lambda a, b: a << 1 < b)]
    return both


def declared(ta, tb, names=None):
    """One computation of all cases, the inputs, and what NumPy makes of them."""
    a, b = arrays(ta, tb)
    A, B = tir.placeholder(a.shape, ta, name="A"), tir.placeholder(b.shape, tb, name="B")
    chosen = [c for c in cases(ta, tb) if names is None or c[0] in names]
    C = tir.compute(a.shape, lambda i: tuple(f(A[i], B[i]) for _, f, _ in chosen), name="C")
    with np.errstate(all="ignore"):
        want = [np.asarray(f(a, b)) for _, _, f in chosen]
    return C, (a, b), want, [n for n, _, _ in chosen]


def agree(got, want, names, who):
    for g, w, name in zip(got, want, names, strict=True):
        assert g.dtype == w.dtype, f"{who}: {name} is {g.dtype}, NumPy's {w.dtype}"
        assert np.array_equal(g, w), f"{who}: {name} of element {int(np.argmax(g != w))}"


def interpreted(s, given):
    from tensorir.lower.pipeline import lower

    module = lower(s.program, s.target)
    made = run(module, {b.name: x for b, x in zip(module.inputs, given, strict=True)}, Numbers())
    return [made[b.name] for b in module.outputs]


def emulated(s, given):
    done = emulate(s.emitted("cuda"), given)
    assert not done.problems, done.problems[0].message
    return done.outputs


def in_c(schedule, C, given, want, names):
    """By one of the C compilers that are here, another one for other types."""
    if here := [d for d in devices() if d.language == "c" and d.usable]:
        d = here[sum(map(ord, given[0].dtype.name)) % len(here)]
        agree(schedule(C, "c").build(d.name)(*given), want, names, f"C by {d.driver}")


def plain(C, target):
    return tir.Schedule(C, target=target)


def in_vectors(C, target):
    s = plain(C, target)
    stage = s.stages()[0].name
    _, inner = s.split(s.loops(stage)[0], [None, 4])
    s.vectorize(inner)
    return s


def in_threads(C, target):
    """Tails guarded, virtual threads, copies of an input in block memory and registers."""
    s = plain(C, target)
    stage = s.stages()[0].name
    outer, middle, inner = s.split(s.loops(stage)[0], [None, 2, 32])
    s.bind(outer, "block.x")
    s.bind(middle, "vthread")
    s.bind(inner, "thread.x")
    s.stage_in("A", outer, "shared")
    s.stage_in("B", inner, "register")
    return s


def hold_together(ta, tb, schedule, names=None, device=True):
    """All executors against NumPy on one pair of types."""
    C, given, want, names = declared(ta, tb, names)
    agree(evaluate(C, given), want, names, "the reference")
    on_gpu = schedule is in_threads
    s = schedule(C, "opencl -kind=gpu" if on_gpu else "opencl")
    agree(interpreted(s, given), want, names, "the interpreter")
    assert compare(s, Field(), 0) is None
    if device:
        agree(s.build("opencl")(*given), want, names, "OpenCL")
        in_c(schedule, C, given, want, names)
    agree(emulated(schedule(C, "cuda"), given), want, names, "CUDA")


@pytest.mark.parametrize("dtype", [*TYPES, "bool"])
def test_operators_of_one_type(dtype):
    pytest.importorskip("pyopencl")
    hold_together(dtype, dtype, plain)


@pytest.mark.parametrize("types", MIXED, ids=":".join)
def test_operators_of_two_types(types):
    pytest.importorskip("pyopencl")
    hold_together(*types, plain)


@pytest.mark.parametrize("dtype", TYPES)
def test_operators_in_vectors(dtype):
    pytest.importorskip("pyopencl")
    hold_together(dtype, dtype, in_vectors)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_operators_in_threads(dtype):
    hold_together(dtype, dtype, in_threads, device=False)


@pytest.mark.parametrize("dtype", TYPES)
def test_what_wraps_around_in_an_array_of_the_kernel(dtype):
    """Compilers see through arrays, and believe where it is compared what they believe of a sum that is kept there."""
    pytest.importorskip("pyopencl")
    a, b = arrays(dtype, dtype)
    A, B = tir.placeholder(a.shape, dtype, name="A"), tir.placeholder(a.shape, dtype, name="B")
    T = tir.compute(a.shape, lambda i: A[i] + 1, name="T")
    U = tir.compute(a.shape, lambda i: B[i] * B[i], name="U")
    V = tir.compute(a.shape, lambda i: U[i] | 1, name="V")
    C = tir.compute(a.shape, lambda i: (T[i] > A[i], V[i] >> 1, tir.maximum(V[i], 0)), name="C")
    s = plain(C, "opencl")
    for name in "TVU":
        s.compute_at(name, "C.i")
    with np.errstate(all="ignore"):
        v = b * b | 1
        want = [a + 1 > a, v >> 1, np.maximum(v, 0)]
    agree(s.build()(a, b), want, ["T > A", "V >> 1", "max(V, 0)"], "OpenCL")
    agree(emulated(s, (a, b)), want, ["T > A", "V >> 1", "max(V, 0)"], "CUDA")


@pytest.mark.parametrize("dtype", TYPES)
def test_literals_that_wrap_around(dtype):
    """Where one element is chosen, the interpreter computes with numbers and not with arrays."""
    most, kind = np.iinfo(dtype).max, np.dtype(dtype).type
    A = tir.placeholder((1,), "int8", name="A")
    x = tir.cast(most, dtype), tir.cast(3, dtype)
    C = tir.compute(
        (1,), lambda i: (tir.where(A[i] > 0, *x) * tir.where(A[i] > 1, *x), tir.where(A[i] > 0, *x) + 1 < 5), name="C"
    )
    with np.errstate(all="ignore"):
        want = [np.array([kind(most) * kind(3)]), np.array([kind(most) + kind(1) < 5])]
    agree(interpreted(tir.Schedule(C), (np.ones(1, "int8"),)), want, ["*", "+ <"], "the interpreter")


def test_conditions_are_divided_as_the_numbers_that_they_are():
    A = tir.placeholder((2,), "bool", name="A")
    C = tir.compute((2,), lambda i: (A[i] % 3, A[i] // 3, (A[i] - 3) // 2), name="C")
    s = tir.Schedule(C)
    made = interpreted(s, (np.array([False, True]),))
    assert [x.tolist() for x in made] == [[0, 1], [0, 0], [-2, -1]] and s.check()


# --- random expressions ----------------------------------------------------------------------------------------------


class Expressions:
    """The same random expression for tir and for NumPy, on elements of two tensors."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.types = [self.rng.choice(TYPES) for _ in range(2)]

    def number(self, depth=4):
        """(on elements, on arrays) of an integer."""
        r = self.rng
        if depth == 0 or r.random() < 0.15:
            n = r.randrange(2)
            return (lambda e, n=n: e[n]), (lambda e, n=n: e[n])
        a, b = self.number(depth - 1), self.number(depth - 1)
        what = r.choice(
            ["+", "-", "*", "&", "|", "^", "<<", ">>", "//", "%", "const", "~", "abs", "min", "mulhi", "cast", "where"]
        )
        if what == "const":
            n, f = r.choice((1, 2, 3, 7, 15, 100)), r.choice([*BITS.values(), operator.add])
            return (lambda e: f(a[0](e), n)), (lambda e: f(a[1](e), n))
        if what == "~":
            return (lambda e: ~a[0](e)), (lambda e: ~a[1](e))
        if what == "abs":
            return (lambda e: tir.abs(a[0](e))), (lambda e: np.abs(a[1](e)))
        if what in ("//", "%"):
            f = operator.floordiv if what == "//" else operator.mod
            return (lambda e: f(a[0](e), b[0](e) | 1)), (lambda e: f(a[1](e), b[1](e) | 1))
        if what == "cast":
            t = r.choice(TYPES)
            return (lambda e: tir.cast(a[0](e), t)), (lambda e: a[1](e).astype(t))
        if what == "where":
            c = self.condition(depth - 1)
            return (lambda e: tir.where(c[0](e), a[0](e), b[0](e))), (lambda e: np.where(c[1](e), a[1](e), b[1](e)))
        if what == "min":
            return (lambda e: tir.minimum(a[0](e), b[0](e))), (lambda e: np.minimum(a[1](e), b[1](e)))
        if what == "mulhi":
            return (lambda e: tir.mulhi(a[0](e), b[0](e))), (lambda e: upper_half(a[1](e), b[1](e)))
        f = {**BITS, **SHIFTS, "+": operator.add, "-": operator.sub, "*": operator.mul}[what]
        if what in SHIFTS and r.random() < 0.4:
            n = r.randrange(8)
            return (lambda e: f(a[0](e), n)), (lambda e: f(a[1](e), n))
        return (lambda e: f(a[0](e), b[0](e))), (lambda e: f(a[1](e), b[1](e)))

    def condition(self, depth=3):
        r = self.rng
        if depth <= 0 or r.random() < 0.5:
            a, b = self.number(max(depth - 1, 0)), self.number(0)
            return (lambda e: a[0](e) < b[0](e)), (lambda e: a[1](e) < b[1](e))
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        if r.random() < 0.3:
            return (lambda e: ~a[0](e)), (lambda e: ~a[1](e))
        f = r.choice(list(BITS.values()))
        return (lambda e: f(a[0](e), b[0](e))), (lambda e: f(a[1](e), b[1](e)))


def drawn(seed, count=12):
    """A computation of several random expressions, its inputs, and NumPy's results."""
    made = Expressions(seed)
    a, b = arrays(*made.types, seed)
    pick = np.random.default_rng(seed).permutation(len(a))[:61]
    a, b = a[pick], b[pick]
    A, B = (tir.placeholder(a.shape, t, name=n) for t, n in zip(made.types, "AB", strict=True))
    wanted, want = [], []
    while len(wanted) < count:
        mine, numpys = made.number()
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(numpys((a, b)))
        except TypeError:  # uint64 with a signed type is a float, which has no bits
            with pytest.raises(tir.DeclarationError, match=r"declare\.bitwise"):
                tir.compute(a.shape, lambda i, f=mine: f((A[i], B[i])), name="C")
            continue
        if result.dtype.kind != "f":
            wanted.append(mine)
            want.append(result)
    C = tir.compute(a.shape, lambda i: tuple(f((A[i], B[i])) for f in wanted), name="C")
    used = {t.name for t in C[0].op.inputs}
    return C, [x for x, n in ((a, "A"), (b, "B")) if n in used], want


def run_drawn(seed, device=True):
    C, given, want = drawn(seed)
    names = [str(n) for n in range(len(want))]
    agree(evaluate(C, given), want, names, f"seed {seed}: the reference")
    s = (plain, in_vectors)[seed % 2](C, "opencl")
    agree(interpreted(s, given), want, names, f"seed {seed}: the interpreter")
    assert compare(s, Field(), 0) is None
    if device:
        agree(s.build()(*given), want, names, f"seed {seed}: OpenCL")
        in_c((plain, in_vectors)[seed % 2], C, given, want, names)
        agree(emulated(plain(C, "cuda"), given), want, names, f"seed {seed}: CUDA")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_expressions_interpreted(seed):
    run_drawn(seed, device=False)


@pytest.mark.parametrize("seed", range(100, 106))
def test_random_expressions_compiled(seed):
    pytest.importorskip("pyopencl")
    run_drawn(seed)


def main():
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expressions", default="1000:1200", help="seeds of random expressions, FIRST:END")
    parser.add_argument("--no-pairs", action="store_true", help="leave out the pairs of types")
    given = parser.parse_args()
    wrong = 0
    work = [] if given.no_pairs else [(hold_together, (a, b, plain)) for a in TYPES for b in TYPES]
    work += [(run_drawn, (seed,)) for seed in range(*map(int, given.expressions.split(":")))]
    for f, args in work:
        try:
            f(*args)
        except Exception as e:
            wrong += 1
            print(f"{f.__name__}{args}: {type(e).__name__}: {e}".splitlines()[0])
    print(f"{len(work)} cases, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
