"""Operators and casts on integers, drawn: NumPy, the reference, the interpreter, PoCL, the C device and emulated CUDA
text give the same values.

    python tests/property/integer_cases.py --cases 100000 --state FILE

draws so many expressions in batches of one kernel each. It prints the seed of each batch that differs and appends the
seeds of finished ones to FILE, where the same call continues. A float outside of an integer's range is not drawn.
"""

import argparse
import operator
import random
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from test_integer_operators import TYPES, edges, emulated, in_vectors, interpreted, plain, upper_half

import tensorir as tir
from tensorir.expr.program import inputs_of
from tensorir.interp.reference import evaluate

BATCH = 64
ELEMENTS = 61
ALL = (*TYPES, "bool")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
EXECUTORS = ("reference", "interpreter", "opencl", "c", "cuda")


def kind_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def power(a, b):
    """NumPy's where it has one; of negative exponents the fraction, rounded toward zero."""
    kind = np.result_type(a, b)
    a, b = a.astype(kind), b.astype(kind)
    made = np.power(a, np.maximum(b, 0))
    if kind.kind == "u":
        return made
    signs = np.where(b % 2 == 0, np.ones_like(a), a)
    return np.where(b >= 0, made, np.where(np.abs(a.astype(object)) == 1, signs, np.zeros_like(a))).astype(kind)


def wholes(name, whole, rng):
    """Floats of the type ``name`` in the range of the integers ``whole``, with fractions, and to its ends."""
    kind = kind_of(name)
    low, high = (-5, 5) if whole == "bool" else (np.iinfo(whole).min, np.iinfo(whole).max)
    near = [
        *rng.uniform(-130, 130, 20),
        *rng.integers(-9, 10, 12) / 4,
        *rng.uniform(low, high, 30),
        low,
        high,
        -0.75,
        0.5,
    ]
    near += [float(high) * (1 - 2.0 ** -(DIGITS[name])), 60_000.0]
    with np.errstate(over="ignore"):
        made = np.array(near).astype(kind)
    kept = [x for x in made if np.isfinite(x) and low <= int(float(x)) <= high]
    return rng.choice(np.array(kept, kind), ELEMENTS)


class Drawn:
    """Expressions over shared inputs, one for each type that one of them reads, and their values by NumPy."""

    def __init__(self, seed):
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.inputs = {}

    def given(self, key):
        """(element, array) of the inputs ``key``: (type, which) or (float type, integer type)."""
        if key not in self.inputs:
            name, which = key
            if isinstance(which, str):
                values = wholes(name, which, self.numbers)
            else:
                values = self.numbers.choice(edges(name, self.numbers, 12), ELEMENTS)
            self.inputs[key] = tir.placeholder((ELEMENTS,), name, name=f"{name}_{which}"), values
        tensor, values = self.inputs[key]
        return (lambda i: tensor[i]), values

    def operand(self, dtype, depth=1, constant=True):
        """A load, one with a proved range, a constant, or an expression of loads: (on elements, values, name)."""
        x, values = self.given((dtype, self.rng.randrange(3)))
        form = self.rng.random()
        if dtype == "bool" or form < 0.55:
            return x, values, dtype
        kind = np.dtype(dtype).type
        n = kind(self.rng.choice([1, 2, 3, 7, 31, 100, np.iinfo(dtype).max]))
        if form < 0.65:
            return (lambda i: x(i) & n), values & n, f"({dtype} & {n})"
        if form < 0.72:
            return (lambda i: x(i) | n), values | n, f"({dtype} | {n})"
        if form < 0.79:
            return (lambda i: (x(i) & 7) + 1), (values & kind(7)) + kind(1), f"(({dtype} & 7) + 1)"
        if (form < 0.88 or not depth) and constant:
            c = kind(self.numbers.choice(edges(dtype, self.numbers)))
            return (lambda i: tir.cast(int(c), dtype)), np.full(ELEMENTS, c), f"{dtype}({c})"
        y, others, said = self.operand(dtype, 0)
        name, f = self.rng.choice([("+", operator.add), ("-", operator.sub), ("*", operator.mul), ("^", operator.xor)])
        return (lambda i: f(x(i), y(i))), f(values, others), f"({dtype} {name} {said})"

    def cast(self):
        """A conversion between any two types."""
        old, new = self.rng.choice((*ALL, *FLOATS)), self.rng.choice((*ALL, *FLOATS))
        if old in FLOATS and new in FLOATS:
            old = self.rng.choice(ALL)
        if old in FLOATS:
            (x, values), said = self.given((old, new)), old
        else:
            x, values, said = self.operand(old)
        return (lambda i: tir.cast(x(i), new)), values.astype(kind_of(new)), f"cast({said}, {new})"

    def bits(self):
        """The bits of a number as another type."""
        old, new = self.rng.choice([(a, b) for a in TYPES for b in TYPES if kind_of(a).itemsize == kind_of(b).itemsize])
        x, values, said = self.operand(old)
        return (lambda i: tir.bitcast(x(i), new)), values.view(new), f"bitcast({said}, {new})"

    def unary(self):
        dtype = self.rng.choice(TYPES)
        x, values, said = self.operand(dtype)
        name, mine, numpys = self.rng.choice([
            ("-", operator.neg, np.negative), ("~", operator.invert, np.invert), ("abs", tir.abs, np.abs),
            *((f"** {n}", lambda e, n=n: e**n, lambda a, n=n: a ** a.dtype.type(n)) for n in (0, 1, 2, 3, 5, 9, 31)),
        ])  # fmt: skip
        return (lambda i: mine(x(i))), numpys(values).astype(dtype), f"{name} {said}"

    def binary(self):
        """An operator on two types, of which NumPy has one result type that is no float, or a comparison."""
        a, b = self.rng.choice(ALL), self.rng.choice(ALL)
        b = a if self.rng.random() < 0.4 else b
        both = np.result_type(kind_of(a), kind_of(b))
        names = [n for n in BINARY if n in COMPARISONS or (both.kind != "f" and ("bool" not in (a, b) or n in LOGICAL))]
        if a == b == "bool":
            names = [*COMPARISONS, "&", "|", "^", "//", "%"]
        elif "bool" in (a, b):
            names = [n for n in names if n not in ("&", "|", "^")]
        name = self.rng.choice(names)
        constant = name not in ("<<", ">>", "**", "//", "%")  # refused where they have no meaning
        (x, p, said), (y, q, also) = self.operand(a), self.operand(b, constant=constant)
        if name in ("<<", ">>") and self.rng.random() < 0.3:
            n = self.rng.randrange(both.itemsize * 8)
            y, also, q = (lambda i: n), str(n), np.full(ELEMENTS, n, q.dtype)
            x, p = (lambda i, x=x: tir.cast(x(i), both.name)), p.astype(both)
        mine, numpys = BINARY[name]
        return (lambda i: mine(x(i), y(i))), numpys(p, q), f"{said} {name} {also}"

    def where(self):
        a, b = self.rng.choice(TYPES), self.rng.choice(TYPES)
        (x, p, said), (y, q, also) = self.operand(a), self.operand(b)
        return (lambda i: tir.where(x(i) < y(i), x(i), y(i))), np.where(p < q, p, q), f"where({said} < {also})"

    def case(self):
        r = self.rng.random()
        pick = self.binary if r < 0.6 else self.cast if r < 0.8 else self.unary if r < 0.9 else self.bits
        return (self.where if r > 0.96 else pick)()


COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGICAL = ("+", "*", "//", "%", "min", "max", "&", "|", "^")
BINARY = {
    **{n: (f, f) for n, f in zip(COMPARISONS, (operator.lt, operator.le, operator.gt, operator.ge), strict=False)},
    "==": (tir.equal, np.equal), "!=": (tir.not_equal, np.not_equal), "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub), "*": (operator.mul, operator.mul), "//": (operator.floordiv, np.floor_divide),
    "%": (operator.mod, np.remainder), "<<": (operator.lshift, np.left_shift), ">>": (operator.rshift, np.right_shift),
    "&": (operator.and_, np.bitwise_and), "|": (operator.or_, np.bitwise_or), "^": (operator.xor, np.bitwise_xor),
    "min": (tir.minimum, np.minimum), "max": (tir.maximum, np.maximum), "mulhi": (tir.mulhi, upper_half),
    "**": (operator.pow, power),
}  # fmt: skip


def batch(seed, count=BATCH):
    """A computation of ``count`` drawn expressions, its inputs, NumPy's results and the expressions' names."""
    drawn = Drawn(seed)
    with np.errstate(all="ignore"):
        cases = [drawn.case() for _ in range(count)]
    kept = []

    def element(i):
        """The expressions; without those of which declaring shows that a divisor or an exponent has no meaning."""
        made = []
        for n, (f, _, _) in enumerate(cases):
            try:
                made.append(f(i))
                kept.append(n)
            except tir.DeclarationError as e:
                if e.problems[0].code not in ("declare.zero-division", "declare.power", "declare.shift"):
                    raise
        return tuple(made)

    C = tir.compute((ELEMENTS,), element, name="C")
    arrays = {tensor.name: values for tensor, values in drawn.inputs.values()}

    given = [arrays[t.name] for t in inputs_of(C)]
    return C, given, [cases[n][1] for n in kept], [cases[n][2] for n in kept]


def results(executor, schedule, C, given):
    """What one executor makes of a batch."""
    if executor == "reference":
        return evaluate(C, given)
    if executor == "interpreter":
        return interpreted(schedule(C, "opencl"), given)
    if executor == "cuda":
        return emulated(plain(C, "cuda"), given)
    made = schedule(C, executor).build("c:0" if executor == "c" else "opencl")(*given)
    return made if isinstance(made, list | tuple) else [made]


def differences(seed, count=BATCH, executors=EXECUTORS):
    """What executors make differently of one batch: (executor, expression, element, theirs, NumPy's)."""
    C, given, want, names = batch(seed, count)
    schedule = in_vectors if seed % 3 == 2 else plain
    for executor in executors:
        for got, wanted, name in zip(results(executor, schedule, C, given), want, names, strict=True):
            widened = executor in ("reference", "interpreter") and wanted.dtype.kind in "fV"
            if np.dtype(got.dtype) != wanted.dtype and not widened:
                yield executor, name, -1, got.dtype, wanted.dtype
            elif (wrong := np.flatnonzero(np.asarray(got).astype(wanted.dtype) != wanted)).size:
                yield executor, name, int(wrong[0]), got[wrong[0]], wanted[wrong[0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--state", type=Path, help="a file of seeds that are done")
    parser.add_argument("--executors", default=",".join(EXECUTORS))
    parser.add_argument("--trace", action="store_true", help="stop at the first error")
    asked = parser.parse_args()
    kept = asked.state.read_text() if asked.state and asked.state.exists() else ""
    old = [line.split() for line in kept.splitlines()]
    done, wrong, start = {int(x[0]) for x in old}, sum(int(x[1]) for x in old), time.monotonic()
    seeds = range(asked.first, asked.first + -(-asked.cases // BATCH))
    for seed in seeds:
        if seed in done:
            continue
        try:
            found = list(differences(seed, executors=asked.executors.split(",")))
        except Exception as e:
            if asked.trace:
                raise
            found = [("error", type(e).__name__, -1, str(e).splitlines()[0], "")]
        for executor, name, element, got, want in found:
            print(f"seed {seed}: {executor}: {name} of element {element} is {got}, NumPy's {want}", flush=True)
        wrong += len(found)
        if asked.state:
            with asked.state.open("a") as f:
                f.write(f"{seed} {len(found)}\n")
    spent = time.monotonic() - start
    print(
        f"seeds {seeds.start} to {seeds.stop - 1}: {BATCH * len(seeds)} cases by {asked.executors}, {wrong} differences"
    )
    print(f"{spent:.0f} s")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
