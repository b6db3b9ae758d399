"""Hostile names in every place that takes one: each is refused where it is declared, or the kernel is right.

    python tools/hostile_names.py [--names N] [--targets c,opencl,cuda,folder] [--seed 7] [--out FILE.json]

Keywords, macros and reserved words of C, OpenCL, C++ and Python, names of libraries, of our own texts, and names that
are not in Unicode's normal form. Each name is tried in each place alone; those that are not refused stand, another one
in each place, in one program per name, which runs on the target: CUDA as text on the CPU, "folder" as an exported
program of C. Rows that are done are kept in FILE and not done again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from random_calls import environment

import tensorir as tir

WORDS = """
block args _Bool _Complex _Imaginary _Atomic _Float16 _Generic _Static_assert half kernel complex imaginary I asm near
far INFINITY NAN M_PI NULL EOF HUGE_VAL errno stdin linux unix i386 signbit main printf assert index y0 typeof
thread_local restrict bool true template class this typename wchar_t size_t float4 dim3 threadIdx __global__ __shared__
__LINE__ get_global_id CLK_LOCAL_MEM_FENCE INT_MAX TENSORIR_X tir_x WIDE lambda None µ ﬁ ſ Ⅷ é 名前 a-b 1st ½ */
\" \\ %d {x}
"""
NAMES = (*WORDS.split(), "a b", "x\n")

Make = Callable[[str], Any]


def _cells(name: str, fill: str = "C") -> Any:
    A = tir.placeholder((4,), "int32", name="A")
    return tir.compute((4,), lambda i: A[i] + 1, name=name if fill == "C" else "C", axes=[name if fill == "i" else "i"])


PLACES: dict[str, Make] = {
    "tensor": lambda n: tir.placeholder((4,), "int32", name=n),
    "constant": lambda n: tir.constant(np.arange(5, dtype="int32"), name=n),
    "scalar": lambda n: tir.scalar(n, "int32"),
    "dim": lambda n: tir.dim(n, high=8),
    "reduce axis": lambda n: tir.reduce_axis(5, name=n),
    "combiner": lambda n: tir.combiner(lambda a, b: a + b, 0, name=n),
    "stage": _cells,
    "output": _cells,
    "axis": lambda n: _cells(n, "i"),
    "loop": lambda n: tir.Schedule(_cells("C")).split("C.i", [None, 2], names=["o", n]),
}
"""What declares a name, by its place."""


def refusal(place: str, name: str) -> str | None:
    """The code with which a name is refused where it is declared; None where it is taken."""
    try:
        PLACES[place](name)
    except tir.TensorIRError as e:
        return e.code
    return None


def program(at: Mapping[str, str], target: str) -> tir.Schedule:
    """Sums of rows of ``(A * c + s)``, with the names at their places."""
    n, k = tir.dim(at["dim"], high=8), tir.reduce_axis(5, name=at["reduce axis"])
    A, c = (
        tir.placeholder((n, 5), "int32", name=at["tensor"]),
        tir.constant(np.arange(5, dtype="int32"), at["constant"]),
    )
    s, add = tir.scalar(at["scalar"], "int32"), tir.combiner(lambda a, b: a + b, 0, name=at["combiner"])
    P = tir.compute((n, 5), lambda i, j: A[i, j] * c[j] + s, name=at["stage"])
    C = tir.compute((n,), lambda i: add(P[i, k], axis=k), name=at["output"], axes=[at["axis"]])
    made = tir.Schedule(C, target="c" if target == "folder" else "cuda -arch=sm_80" if target == "cuda" else target)
    loop = next(x for x in made.index.loops if x.endswith(f"{at['axis']}"))
    made.split(loop, [None, 4], names=["o", at["loop"]])
    return made


def trial(at: Mapping[str, str], target: str, scratch: Path) -> str:
    """ "right", or what is wrong with a program of these names."""
    try:
        s = program(at, target)
        if target == "cuda":
            verdict = s.check("emulate")
            return "right" if verdict else str(verdict)
        a = np.arange(20, dtype="int32").reshape(4, 5)
        if target == "folder":
            folder = s.export(scratch / "folder", to="c")
            (text,) = folder.glob("folder.c")
            build = ["cc", "-std=c11", "-Wall", "selftest.c", text.name, "-o", "selftest", "-lm", "-lpthread"]
            for words in (build, ["./selftest"]):
                done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
                if done.returncode:
                    return (done.stdout + done.stderr)[-500:]
            return "right"
        got = s.build()(a, np.int32(3))
        return "right" if np.array_equal(got, (a * np.arange(5) + 3).sum(1)) else f"wrong: {got}"
    except tir.TensorIRError as e:
        return f"late [{e.code}] {str(e)[:300]}"
    except Exception as e:
        return f"raw {type(e).__name__}: {str(e)[:300]}"


def rows(names: tuple[str, ...], target: str) -> list[dict[str, str]]:
    """Programs in which each name that is not refused stands once in each place, no two names of one program alike."""
    free = {place: [n for n in names if refusal(place, n) is None] for place in PLACES}
    out = []
    for row in range(max(map(len, free.values()))):
        at: dict[str, str] = {}
        for turn, (place, mine) in enumerate(free.items()):
            order = [mine[(row + 3 * turn + more) % len(mine)] for more in range(len(mine))]
            at[place] = next(n for n in order if n not in at.values())
        out.append(at)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=len(NAMES))
    parser.add_argument("--targets", default="c,opencl,cuda,folder")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = tuple(random.Random(given.seed).sample(NAMES, min(given.names, len(NAMES))))
    print(f"seed {given.seed}, {len(names)} names, {len(PLACES)} places")
    done: dict[str, Any] = (
        json.loads(given.out.read_text("utf-8")) if given.out and given.out.exists() else {"rows": {}}
    )
    done["environment"] = environment()
    done["refused"] = {p: {n: c for n in names if (c := refusal(p, n)) is not None} for p in PLACES}
    undotted = [c for found in done["refused"].values() for c in found.values() if "." not in c]
    bad = len(undotted)
    for target in given.targets.split(","):
        for at in rows(names, target):
            key = f"{target} {json.dumps(at, ensure_ascii=False)}"
            if done["rows"].get(key) != "right":
                with tempfile.TemporaryDirectory() as scratch:
                    done["rows"][key] = trial(at, target, Path(scratch))
                if given.out:
                    given.out.write_text(json.dumps(done, ensure_ascii=False, indent=1), "utf-8")
            if done["rows"][key] != "right":
                bad += 1
                print(f"{target}: {at}\n  {done['rows'][key]}", flush=True)
        print(f"{target}: done", flush=True)
    print(f"{bad} wrong of {len(done['rows'])} programs; refused: {sum(map(len, done['refused'].values()))}")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
