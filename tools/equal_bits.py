"""Printed text against its lowered program, bit by bit: definitions drawn by a seed, scheduled for Ampere and Hopper.

``python tools/equal_bits.py --seed 1 --count 300`` prints a line for each and keeps what is done, so that it may be
stopped and continues; the result goes to ``benchmarks/results/equal_bits.json`` with the date and versions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "property"), str(ROOT / "tests" / "automatic")]

import drawing  # noqa: E402
import numpy as np  # noqa: E402
from computations import ZOO  # noqa: E402
from random_schedules import Chance, draw_call  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir import nn  # noqa: E402
from tensorir.check.resize import dim_values, module_at, schedule_at  # noqa: E402
from tensorir.check.verdict import expected_bits, other_bits  # noqa: E402
from tensorir.codegen.source import Source  # noqa: E402
from tensorir.errors import LoweringError, TensorIRError  # noqa: E402
from tensorir.lower.lowered import lowered  # noqa: E402

ARCHITECTURES = ("sm_80", "sm_90a")
RESULT = ROOT / "benchmarks" / "results" / "equal_bits.json"
PRECISIONS = ("fp32", "tf32", "3xtf32")
EXTENTS = (1, 2, 3, 5, 8, 13, 16, 31, 32, 33, 48, 64, 65)
MULTIPLES = (16, 32, 64, 128)
NARROW = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8")


class Drawing:
    """Decisions of one definition."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def one_of(self, items: Any) -> Any:
        return items[self.rng.randrange(len(items))]

    def several(self, items: Any, count: int) -> list[Any]:
        return [self.one_of(items) for _ in range(count)]


def zoo(c: Drawing) -> Any:
    """A small computation of the property tests."""
    one = ZOO[c.one_of(tuple(ZOO))]
    return one.make(*c.several(EXTENTS[1:6], 3), c.one_of(one.dtypes))


def calls(c: Drawing) -> Any:
    """The same, scheduled by random primitives."""
    return zoo(c)


def product(c: Drawing) -> Any:
    """A product of any sizes in float32."""
    m, n, k = c.several(EXTENTS, 3)
    return _epilogue(c, _matmul(m, n, k, "float32", False), n)


def narrow_product(c: Drawing) -> Any:
    """A product of narrow types, whose sizes tensor cores take."""
    m, n, k = c.several(MULTIPLES, 3)
    return _epilogue(c, _matmul(m, n, k, c.one_of(NARROW), c.one_of((False, True))), n)


def _matmul(m: int, n: int, k: int, dtype: str, turned: bool) -> Any:
    A, B = tir.placeholder((m, k), dtype, name="A"), tir.placeholder((n, k) if turned else (k, n), dtype, name="B")
    r, sums = tir.reduce_axis(k, name="r"), "int32" if dtype == "int8" else "float32"

    def term(i: Any, j: Any) -> Any:
        a, b = A[i, r], B[j, r] if turned else B[r, j]
        return a * b if dtype == sums else tir.cast(a, sums) * tir.cast(b, sums)

    return tir.compute((m, n), lambda i, j: tir.sum(term(i, j), axis=r), name="C")


def _epilogue(c: Drawing, C: Any, n: int) -> Any:
    """What is made of each sum."""
    if C.dtype == "int32":
        return C
    v = tir.placeholder((n,), name="v")
    made: dict[str, Callable[[Any, Any], Any]] = {
        "none": lambda i, j: C[i, j],
        "relu": lambda i, j: tir.maximum(C[i, j] + v[j], 0),
        "gelu": lambda i, j: C[i, j] * (tir.erf(C[i, j] * 0.7071) + 1) * 0.5,
        "sigmoid": lambda i, j: 1 / (1 + tir.exp(-C[i, j] - v[j])),
        "tanh": lambda i, j: tir.tanh(C[i, j]) * v[j],
        "half": lambda i, j: tir.cast(C[i, j] + v[j], "float16"),
    }
    name = c.one_of(tuple(made))
    return C if name == "none" else tir.compute(C.shape, made[name], name="D")


def rows(c: Drawing) -> Any:
    """A function of rows."""
    m, n, dtype = c.one_of(EXTENTS[:8]), c.one_of((7, 32, 70, 129, 256)), c.one_of(("float32", "float32", "float16"))
    x, g, b = tir.placeholder((m, n), dtype, name="x"), tir.placeholder((n,), name="g"), tir.placeholder((n,), name="b")
    r = tir.reduce_axis(n, name="r")
    made: dict[str, Callable[[], Any]] = {
        "softmax": lambda: nn.softmax(x, -1),
        "log_softmax": lambda: nn.log_softmax(x, -1),
        "layer_norm": lambda: nn.layer_norm(x, (n,), g, b),
        "rms_norm": lambda: nn.rms_norm(x, (n,), g),
        "cumsum": lambda: nn.cumsum(x, -1),
        "max": lambda: tir.compute((m,), lambda i: tir.max(x[i, r], axis=r), name="y"),
        "sum": lambda: tir.compute((m,), lambda i: tir.sum(x[i, r], axis=r), name="y"),
    }
    return made[c.one_of(tuple(made))]()


def pointwise(c: Drawing) -> Any:
    """Functions, one after another."""
    n, dtype = c.one_of((33, 100, 257)), c.one_of(("float32", "float64", "float16", "bfloat16"))
    x, y = tir.placeholder((n,), dtype, name="x"), tir.placeholder((n,), dtype, name="y")
    functions = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "exp2", "log2", "abs", "floor", "round")
    first, second = c.several(functions, 2)
    join = c.one_of((
        lambda a, b: a * b + a, lambda a, b: a / b, tir.minimum, lambda a, b: tir.where(a < b, a, -b), tir.pow,
        lambda a, b: a // b, lambda a, b: a % b,
    ))  # fmt: skip
    return tir.compute((n,), lambda i: getattr(tir, first)(join(x[i], getattr(tir, second)(y[i]))), name="z")


def convolution(c: Drawing) -> Any:
    """A convolution in either layout."""
    dtype, channels = c.one_of(("float32", "float16")), c.one_of((4, 8, 16))
    h, k, f = c.one_of((5, 8, 9)), c.one_of((8, 16)), c.one_of((1, 3))
    x = tir.placeholder((1, channels, h, h), dtype, name="x")
    w = tir.placeholder((k, channels, f, f), dtype, name="w")
    return nn.conv2d(x, w, stride=c.one_of((1, 2)), pad=f // 2)


def attention(c: Drawing) -> Any:
    """Attention of one or two heads."""
    dtype, n, d = c.one_of(("float32", "float16")), c.one_of((32, 48, 64)), c.one_of((16, 32, 64))
    q, k, v = (tir.placeholder((1, c.one_of((1,)), n, d), dtype, name=name) for name in "qkv")
    return nn.attention(q, k, v)


def stages(c: Drawing) -> Any:
    """One to five stages of every sort, often in several kernels, with dims among their extents."""
    return drawing.drawn(c.rng.randrange(1 << 20) + c.one_of((0, 1 << 21))).outputs


def scatter(c: Drawing) -> Any:
    """Terms that are sent to cells: whole ones by atomic operations, others in an order."""
    m, n, dtype = c.one_of((5, 16, 33)), c.one_of((40, 129, 300)), c.one_of(("float32", "int32", "float16"))
    cells, terms = tir.placeholder((n,), "int32", name="cells"), tir.placeholder((n, 3), dtype, name="terms")
    joined = c.one_of(("sum", "min", "max"))
    made = tir.scatter(
        (m, 3), over=(n, 3), index=lambda e, k: (cells[e], k), value=lambda e, k: terms[e, k], op=joined, name="h"
    )
    return made if c.one_of((True, False)) else tir.compute((m, 3), lambda i, k: made[i, k] + made[m - 1 - i, k])


FAMILIES = (
    zoo, calls, calls, product, narrow_product, narrow_product, rows, pointwise, convolution, attention, stages, stages,
    scatter,
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of one definition on one architecture."""

    number: int
    family: str
    arch: str
    found: str
    seconds: float


def drawn(seed: int, number: int) -> tuple[str, Any, dict[str, str]]:
    """The family and the outputs of a definition, and how exact products of float32 are."""
    c = Drawing(seed * 1_000_003 + number)
    family = c.one_of(FAMILIES)
    return family.__name__, family(c), {"precision": c.one_of(PRECISIONS)} if family is product else {}


def judged(seed: int, number: int, arch: str) -> Outcome:
    """One definition on one architecture: "equal", "undetermined", the code of a refusal, or what is wrong."""
    before, (family, outputs, precision) = sum(os.times()[:4]), drawn(seed, number)
    try:
        s, source = _scheduled(family, outputs, f"cuda -arch={arch}", precision, seed * 1_000_003 + number)
        dims = dim_values(s.began_with, {})
        module, at = module_at(lowered(s), dims), schedule_at(s, dims) if dims else s
        source = source.at({v.name: n for v, n in dims.items()}) if dims else source
        bits = expected_bits(at, module, seed + number)
        wrong = other_bits(at, source, module, bits, seed + number, None)
        said = f"{wrong[0][0].code}: {wrong[0][0].message}" if wrong else "equal" if bits else "undetermined"
    except TensorIRError as e:
        said = f"refused: {e.problems[0].code}"
    return Outcome(number, family, arch, said, round(sum(os.times()[:4]) - before, 2))


def _scheduled(
    family: str, outputs: Any, target: str, precision: dict[str, str], seed: int
) -> tuple[tir.Schedule, Source]:
    """A definition by the rules, or by as many random primitives as the target can express."""
    if family != "calls":
        template = next(iter(tir.auto(outputs, target, **precision).values()))
        s = tir.Schedule(outputs, target)
        s = template.function(s, template.space_for(s.target).default) or s
        return s, s.emitted()
    for count in (8, 4, 2, 0):
        s, c = tir.Schedule(outputs, target), Chance(seed)
        for _ in range(count):
            name, args, options = draw_call(c, s)
            with contextlib.suppress(TensorIRError):
                getattr(s, name)(*args, **options)
        with contextlib.suppress(LoweringError):
            return s, s.emitted()
    raise AssertionError("a definition alone can be lowered")


def outcomes(seed: int, count: int, kept: Path) -> Iterator[Outcome]:
    """What was kept of this seed, and then the others, each kept as it is known."""
    known: dict[tuple[int, str], Outcome] = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        one = Outcome(**json.loads(line))
        known[one.number, one.arch] = one
    for number in range(count):
        for arch in ARCHITECTURES:
            if (number, arch) not in known:
                known[number, arch] = judged(seed, number, arch)
                with kept.open("a") as file:
                    file.write(json.dumps(asdict(known[number, arch])) + "\n")
            yield known[number, arch]


def versions() -> dict[str, str]:
    """What the figures depend on."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return {"date": time.strftime("%Y-%m-%d"), "tensorir": tir.__version__, "python": platform.python_version(),
            "numpy": np.__version__, "compiler": compiler}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="definitions, each on both architectures")
    parser.add_argument("--kept", type=Path, help="where to keep what is done; default: by the seed, in build/")
    parser.add_argument("--result", type=Path, default=RESULT)
    args = parser.parse_args()
    kept = args.kept or ROOT / "build" / f"equal_bits_{args.seed}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    print(f"seed {args.seed}", flush=True)
    done = []
    for one in outcomes(args.seed, args.count, kept):
        done.append(one)
        print(f"{one.number} {one.family} {one.arch}: {one.found} ({one.seconds} s)", flush=True)
    table = {f: dict(Counter(o.found.split(":")[0] for o in done if o.family == f)) for f in {o.family for o in done}}
    wrong = [asdict(o) for o in done if o.found.startswith(("check.", "emulate.", "race", "memory", "interp"))]
    args.result.write_text(json.dumps(
        {"seed": args.seed, "count": args.count, **versions(), "seconds": round(sum(o.seconds for o in done)),
         "by_family": dict(sorted(table.items())), "wrong": wrong}, indent=1) + "\n")  # fmt: skip
    print(json.dumps(table, indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
