"""Default schedules for 1 to 128 cores: blocks of their kernels, and modelled seconds against Amdahl's law.

    python benchmarks/cores.py                      # 40 shapes, OpenCL and C; nothing is timed
    python benchmarks/cores.py --only softmax --out FILE

Products, rows, convolutions and stencils are drawn by ``--seed`` and scheduled for ``-units`` = 1, 2, 4, 16, 64, 128.
``short``: machines whose costly kernels (a tenth of the seconds or more, above ``WORTH_S`` a core) have fewer blocks
than cores. ``slower``, ``faster``: machines with more seconds than one of fewer cores has, or with more speed-up than
cores.
``off``: the largest factor between modelled seconds and Amdahl's, serial + parallel / cores, with both parts fitted to
the logarithms of all six. Prints a line a shape, writes benchmarks/results/cores.json; rows that it has are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measuring import environment  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.automatic.notes import Modelled  # noqa: E402
from tensorir.machine import machine_of  # noqa: E402

UNITS = (1, 2, 4, 16, 64, 128)
TARGETS = ("opencl -registers=32 -vector_bytes=64", "c -registers=16 -vector_bytes=32")
WORTH_S = 20e-6
"""Seconds of one core's part below which more blocks cost more than they give."""
Made = Callable[[], Any]


def _x(*shape: int, name: str = "x") -> tir.Tensor:
    return tir.placeholder(shape, name=name)


def products(r: random.Random) -> tuple[str, Made]:
    m, n, k = (round(2 ** r.uniform(*bounds)) for bounds in ((0, 11), (0, 11), (6, 13)))
    return f"matmul {m}x{n}x{k}", lambda: tir.nn.matmul(_x(m, k, name="a"), _x(k, n, name="b"))


def rows(r: random.Random) -> tuple[str, Made]:
    name, m, n = r.choice(("softmax", "sum", "max", "norm")), *(round(2 ** r.uniform(*b)) for b in ((0, 13), (4, 17)))
    if name in ("softmax", "norm"):
        n = min(n, 1 << 14)

    def made() -> Any:
        x = _x(m, n)
        if name == "softmax":
            return tir.nn.softmax(x, -1)
        if name == "norm":
            return tir.nn.layer_norm(x, (n,))
        k = tir.reduce_axis(n, name="k")
        return tir.compute((m,), lambda i: getattr(tir, name)(x[i, k], axis=k), name="y")

    return f"{name} {m}x{n}", made


def convolutions(r: random.Random) -> tuple[str, Made]:
    side, taps, stride = r.choice((7, 14, 28, 56, 112)), r.choice((1, 3, 5)), r.choice((1, 1, 2))
    c, k = (r.choice((16, 24, 64, 96, 128, 256, 512)) for _ in "ck")
    deep = r.random() < 0.3
    sizes = dict(c=c, h=side, w=side, k=c if deep else k, r=taps, s=taps, pad=taps // 2, stride=stride,
                 groups=c if deep else 1)  # fmt: skip
    kind = "depthwise" if deep else "conv"
    return f"{kind} {c}x{side} {sizes['k']}x{taps}/{stride}", lambda: tir.ops.conv2d(**sizes).outputs


def stencils(r: random.Random) -> tuple[str, Made]:
    h, w = (round(2 ** r.uniform(5, 12)) for _ in "hw")
    taps, chained = r.choice((3, 5)), r.random() < 0.5

    def made() -> Any:
        out = _x(h + 2 * taps, w + 2 * taps)
        for step in range(1 + chained):
            high, wide = (d - taps + 1 for d in out.shape)
            out = tir.compute(
                (high, wide), lambda i, j, x=out: sum((x[i + t, j + t] for t in range(taps)), x[i, j] * 0.5),
                name=f"y{step}",
            )  # fmt: skip
        return out

    return f"stencil {h}x{w} {taps}" + "x2" * chained, made


def of(made: Made, target: str) -> dict[str, Any]:
    """What the default schedules for all numbers of cores do."""
    seconds, blocks, short = [], [], []
    for units in UNITS:
        s = tir.auto_schedule(made(), f"{target} -units={units}")
        m = Modelled.of(s, machine_of(s.target))
        worked = [k.cycles / (m.machine.clock * units) for k in m.kernels]
        costly = [k for k, s in zip(m.kernels, worked, strict=True) if s > WORTH_S and 10 * s > sum(worked)]
        seconds.append(m.counts.seconds)
        blocks.append(min((k.blocks for k in costly), default=0))
        if any(k.blocks < units for k in costly):
            short.append(units)
    speed = [seconds[0] / s for s in seconds]
    slower = [u for u, few, many in zip(UNITS[1:], seconds, seconds[1:], strict=False) if many > 1.02 * few]
    faster = [u for u, by in zip(UNITS, speed, strict=True) if by > 1.02 * u]
    return {"seconds": seconds, "blocks": blocks, "short": short, "slower": slower, "faster": faster,
            "off": _off(seconds)}  # fmt: skip


def _off(seconds: list[float]) -> float:
    """The largest factor from Amdahl's law with the serial share that fits best."""
    shares = np.concatenate([[0.0], np.logspace(-5, 0, 200)])
    law = np.log(shares[:, None] + (1 - shares[:, None]) / np.array(UNITS))
    off = np.log(seconds) - law
    spread = (off.max(1) - off.min(1)) / 2
    return math.exp(spread.min())


def shapes(seed: int, count: int) -> Iterator[tuple[str, Made]]:
    kinds = (products, rows, convolutions, stencils)
    for n in range(count):
        yield kinds[n % 4](random.Random(f"{seed} {n}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20261201)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cores.json")
    args = parser.parse_args()
    before = json.loads(args.out.read_text()) if args.out.exists() else {}
    found = before["rows"] if before.get("seed") == args.seed else {}
    print(f"seed {args.seed}")
    for name, made in shapes(args.seed, args.count):
        for target in TARGETS:
            key = f"{name}, {target.split()[0]}"
            if args.only not in key:
                continue
            row = found[key] = found.get(key) or of(made, target)
            args.out.write_text(json.dumps({"seed": args.seed, "environment": environment(), "rows": found}, indent=1))
            told = "  ".join(f"{what} {row[what]}" for what in ("short", "slower", "faster") if row[what])
            speed = " ".join(f"{row['seconds'][0] / s:6.1f}" for s in row["seconds"])
            print(f"{key:34} {row['seconds'][0] * 1e6:10.1f} us {speed}  off {row['off']:.2f}  {told}", flush=True)
    counts = ", ".join(f"{what} {sum(bool(r[what]) for r in found.values())}" for what in ("short", "slower", "faster"))
    print(f"{len(found)} rows; {counts}, worst off {max(r['off'] for r in found.values()):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
