"""Faults that someone who edits a kernel makes, by their description: does ``check(level="emulate")`` tell them?

    python tools/mutants/edited_planted.py [--kernels softmax] [--save] [--seed 0]

Texts with float16, row reductions, loop carries and scans in (min, +). Each fault says what becomes of it: "seen", or
why it is none ("equivalent", "below tolerance", "void": the shape never runs it, "performance"), or "not judged" where
the emulator lacks a function. A fault that is to be seen and is not has survived, and the exit code is 1. Rows that are
done are kept (``--save``), so that a run can be continued.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import tensorir as tir

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "edited_planted.json"
TARGET = "cuda -arch=sm_80"
BARRIER = "  __syncthreads();\n"


def scan(n: int = 100) -> tir.Schedule:
    """h[i] = min(h[i - 1] + p[i], p[i] + q[i])."""
    op = tir.combiner(
        lambda a, b: (a[0] + b[0], tir.minimum(a[1] + b[0], b[1])), (0.0, np.inf), name="mp", commutative=False
    )
    p, q = tir.placeholder((n,), name="p"), tir.placeholder((n,), name="q")
    x = tir.compute((n,), lambda i: p[i] + q[i], name="x")
    return tir.auto_schedule(tir.scan((p, x), axis=0, op=op, name="h")[1], target=TARGET)


def attention(keys: int) -> tir.Schedule:
    return tir.ops.attention(q="1x1x20x32", k=f"1x1x{keys}x32", dtype="float16").schedule(target=TARGET)


KERNELS: dict[str, Callable[[], tir.Schedule]] = {
    "softmax": lambda: tir.ops.softmax(x="9x70").schedule(target=TARGET),
    "softmax f16": lambda: tir.ops.softmax(x="9x70", dtype="float16").schedule(target=TARGET),
    "layer_norm f16": lambda: tir.ops.layer_norm(x="6x70", dtype="float16").schedule(target=TARGET),
    "attention f16": lambda: attention(150),
    "attention f16, one tile": lambda: attention(60),
    "min-plus scan": scan,
}


@dataclass(frozen=True)
class Fault:
    """``old`` becomes ``new`` in a kernel's body, at its ``nth`` place."""

    kernel: str
    about: str
    old: str
    new: str
    fate: str = "seen"
    nth: int = 0


def _softmax(kernel: str) -> list[Fault]:
    half = "f16" in kernel
    x, widened = ("x_shared[j_0 * 64 + j_1]",) * 2
    if half:
        widened = f"__half2float({x})"
    down = "__shfl_down_sync(0xffffffffu, softmax_max_part[0], {})"
    rows = [
        ("offset 16 is 8 in the maximum", down.format(16), down.format("8"), "seen", 0),
        ("width 16 in the maximum", down.format(16), down.format("16, 16"), "seen", 0),
        ("offset 1 is 2 in the maximum", down.format(1), down.format(2), "seen", 0),
        ("xor for down in the maximum", down.format(16), down.format(16).replace("down", "xor"), "equivalent", 0),
        ("up for down in the maximum", down.format(16), down.format(16).replace("down", "up"), "seen", 0),
        ("the legacy shuffle", down.format(16), "__shfl_down(softmax_max_part[0], 16)", "not judged", 0),
        (
            "the second warp's maximum dropped",
            "j_1 % 32 < 2 ? softmax_max_tree",
            "j_1 % 32 < 1 ? softmax_max_tree",
            "seen",
            0,
        ),
        (
            "the last round of the maximum dropped",
            "j_0 < 2; ++j_0)\n    if (j_0 * 64 + j_1 < 70)\n      softmax_max_part",
            "j_0 < 1; ++j_0)\n    if (j_0 * 64 + j_1 < 70)\n      softmax_max_part",
            "seen",
            0,
        ),
        (
            "the last column left out of the maximum",
            "j_1 < 70)\n      softmax_max_part",
            "j_1 < 69)\n      softmax_max_part",
            "seen",
            0,
        ),
        (
            "padding takes part in the maximum",
            "j_1 < 70)\n      softmax_max_part",
            "j_1 < 71)\n      softmax_max_part",
            "seen",
            0,
        ),
        ("nothing subtracted", f"{widened} - softmax_max[0]", widened, "seen", 0),
        (
            "the maximum begins with 0",
            "softmax_max_part[0] = -__int_as_float(0x7f800000)",
            "softmax_max_part[0] = 0.0f",
            "seen",
            0,
        ),
        (
            "the maximum begins with -1e30",
            "softmax_max_part[0] = -__int_as_float(0x7f800000)",
            "softmax_max_part[0] = -1e30f",
            "equivalent" if half else "seen",
            0,
        ),
        ("padding is summed", "j_1 < 70)\n      softmax_sum_part", "j_1 < 71)\n      softmax_sum_part", "seen", 0),
        ("the sum misses lanes", "softmax_sum_part[0], 16)", "softmax_sum_part[0], 8)", "seen", 0),
        (
            "no barrier before the tree is read",
            BARRIER + "  softmax_max_part[0] = j_1",
            "  softmax_max_part[0] = j_1",
            "seen",
            0,
        ),
        (
            "no barrier before the maximum is read",
            BARRIER + "  for (int j_0 = 0; j_0 < 2; ++j_0)\n    softmax_exp",
            "  for (int j_0 = 0; j_0 < 2; ++j_0)\n    softmax_exp",
            "seen",
            0,
        ),
        (
            "no barrier between threads and themselves",
            BARRIER + "  float softmax_max_other",
            "  float softmax_max_other",
            "equivalent",
            0,
        ),
        ("exp off by 1e-7", "__expf(", "(1.0000001f) * __expf(", "below tolerance", 0),
        ("reads one row further", "x[x_at + n * 64]", "x[x_at + n * 64 + 70]", "seen", 0),
        ("a row of the next block's", "const int x_at = i * 70", "const int x_at = i * 71", "seen", 0),
        (
            "scalar where two could go",
            "for (int n = 0; n < 2; ++n)\n",
            "#pragma unroll 1\n  for (int n = 0; n < 2; ++n)\n",
            "performance",
            0,
        ),
    ]
    if half:
        store = "__float2half_rn(softmax_exp[j_0 * 64 + j_1] / softmax_sum[0])"
        rows += [
            ("rounded toward zero", store, store.replace("_rn", "_rz"), "below tolerance", 0),
            (
                "rounded up twice",
                store,
                f"__float2half_ru(__half2float({store.replace('_rn', '_ru')}) * 1.003f)",
                "seen",
                0,
            ),
            (
                "a float16 read beyond the end",
                store,
                store.replace("softmax_sum[0]", "(softmax_sum[0] + 0.0f * __half2float(x[softmax_at + 700]))"),
                "seen",
                0,
            ),
            (
                "a float16 read of shared memory that others write",
                "  float softmax_max_other",
                "  if (__half2float(x_shared[(j_1 + 33) % 128]) == 12345.0f) return;\n  float softmax_max_other",
                "equivalent",
                0,
            ),
            (
                "the same with the barrier gone",
                BARRIER + "  float softmax_max_other",
                "  if (__half2float(x_shared[(j_1 + 33) % 128]) == 12345.0f) return;\n  float softmax_max_other",
                "seen",
                0,
            ),
        ]
    return [Fault(kernel, *row) for row in rows]


def _layer_norm() -> list[Fault]:
    rows = [
        (
            "the first barrier dropped, with a neighbour's read",
            BARRIER + "  float layer_norm_sum_other[1];",
            "  float layer_norm_sum_other[1];\n  if (__half2float(x_shared[j_1 ^ 64]) == 12345.0f) return;",
        ),
        ("eps dropped", " + 1e-05f", ""),
        ("eps inside out", "/ 70.0f + 1e-05f", "/ (70.0f + 1e-05f)"),
        ("mean over 69", "layer_norm_sum[0] / 70.0f) * rsqrtf", "layer_norm_sum[0] / 69.0f) * rsqrtf"),
        ("weight of the next column", "weight[j_1]", "weight[j_1 + 1]"),
        ("bias doubled", "__half2float(bias[j_1])", "2.0f * __half2float(bias[j_1])"),
        (
            "a warp's part of the sum dropped",
            "j_1 % 32 < 4 ? layer_norm_sum_tree",
            "j_1 % 32 < 2 ? layer_norm_sum_tree",
        ),
        (
            "padding in the squares",
            "  if (j_1 < 70)\n    layer_norm_squares_part",
            "  if (j_1 < 128)\n    layer_norm_squares_part",
        ),
        (
            "bias beyond the end, times 0",
            "__half2float(bias[j_1])",
            "__half2float(bias[j_1]) + 0.0f * __half2float(bias[j_1 + 70])",
        ),
        (
            "squares of half precision",
            "layer_norm_squares[0] / 70.0f",
            "__half2float(__float2half_rz(layer_norm_squares[0] / 70.0f))",
        ),
    ]
    return [Fault("layer_norm f16", *row) for row in rows]


def _attention(kernel: str, void: str, keys: str) -> list[Fault]:
    """keys: how the loop of the maximum begins"""
    rows = [
        ("the sum is not rescaled", "attention_l[lane] *= attention_m_scale[lane];", ";", void, 0),
        (
            "the scale of the sum is that of the row before",
            "attention_l[lane] *= attention_m_scale[lane]",
            "attention_l[lane] *= attention_m_scale[lane ^ 1]",
            void,
            0,
        ),
        (
            "the old maximum is kept",
            "attention_m_old[lane] = attention_m[lane]",
            "attention_m_old[lane] = 0.0f",
            void,
            0,
        ),
        (
            "the maximum forgets earlier tiles",
            "attention_m_held[0] = attention_m[lane];",
            "attention_m_held[0] = -__int_as_float(0x7f800000);",
            void,
            0,
        ),
        (
            "the maximum misses half of a tile",
            keys,
            keys.replace("8", "4"),
            "seen",
            0,
        ),
        (
            "the maximum misses one key in eight",
            "tir_max_float(attention_m_held[0], attention_S",
            "j_1 == 7 ? attention_m_held[0] : tir_max_float(attention_m_held[0], attention_S",
            "seen",
            0,
        ),
        (
            "the sum begins anew in each tile",
            "attention_l_held[0] = attention_l[lane];",
            "attention_l_held[0] = 0.0f;",
            void,
            0,
        ),
        ("the scale is off by 2 %", "* 0.17677669f", "* 0.180312f", "seen", 1),
    ]
    return [Fault(kernel, *row) for row in rows]


FAULTS = [
    *_softmax("softmax"),
    *_softmax("softmax f16"),
    *_layer_norm(),
    *_attention("attention f16", "seen", "attention_m_j_0 < 8;"),
    *_attention("attention f16, one tile", "void", "j_0 < 8; ++j_0) {\n      #pragma"),
]


def planted(text: str, fault: Fault) -> str | None:
    """``text`` with the fault in its kernel; None where it has no place for it."""
    first = text.index('extern "C"')
    pieces = text[first:].split(fault.old)
    if len(pieces) <= fault.nth + 1:
        return None
    return text[:first] + fault.old.join(pieces[: fault.nth + 1]) + fault.new + fault.old.join(pieces[fault.nth + 1 :])


def scan_faults(text: str) -> list[Fault]:
    """Every smaller index, offset, operator and start of the scan, one at a time: its text is generated."""
    body = text[text.index('extern "C"') :]
    found = []
    for old, new in (
        ("__syncthreads();", ";"),
        (" + ", " - "),
        ("tir_min_float(", "tir_max_float("),
        (" < ", " <= "),
        (" >= ", " > "),
        ("-__int_as_float", "__int_as_float"),
        ("0x7f800000", "0x7f7fffff"),
    ):
        found += [Fault("min-plus scan", f"{old} -> {new}", old, new, "", n) for n in range(min(6, body.count(old)))]
    return found


def judged(s: tir.Schedule, text: str, seed: int) -> str:
    try:
        verdict = s.with_source(text).check(level="emulate", seed=seed)
    except tir.TensorIRError as error:
        return f"refused: {error.code}"
    if verdict:
        return "void" if "loop of 1 iteration" in verdict.kind else "passes"
    return "not judged" if str(verdict).startswith("not judged") else f"seen: {verdict.problems[0].code}"


def tried(faults: Iterable[tuple[dict, tir.Schedule, str | None]], results: Path, save: bool, seed: int) -> list[dict]:
    """Rows of faults, each with what is found of its text (None: it has no place). Of those that ``results`` has,
    which is written with ``save``, nothing is asked again.
    """
    kept = json.loads(results.read_text())["rows"] if save and results.exists() else []
    done = {(r["kernel"], r["about"], r.get("nth", 0)) for r in kept}
    for row, s, text in faults:
        if (row["kernel"], row["about"], row.get("nth", 0)) in done:
            continue
        found = "no place" if text is None else judged(s, text, seed)
        kept.append({**row, "found": found})
        print(
            f"{row['kernel']}: {row['about']}: {found}" + (f" (expected: {row['fate']})" if row["fate"] else ""),
            flush=True,
        )
        if save:
            about = {
                "date": time.strftime("%Y-%m-%d"),
                "python": platform.python_version(),
                "tensorir": tir.__version__,
            }
            results.write_text(json.dumps({**about, "seed": seed, "rows": kept}, indent=1) + "\n")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="of which the name has this in it")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scan", action="store_true", help="small changes of the scan's text, too: listed, not judged")
    given = parser.parse_args()
    made = {name: make() for name, make in KERNELS.items() if given.kernels in name}
    faults = [f for f in FAULTS if f.kernel in made]
    if given.scan and "min-plus scan" in made:
        faults += scan_faults(made["min-plus scan"].emitted().text)
    print(f"seed {given.seed}, {len(faults)} faults", flush=True)
    texts = ((asdict(f), made[f.kernel], planted(made[f.kernel].emitted().text, f)) for f in faults)
    kept = tried(texts, RESULTS, given.save, given.seed)
    survived = [r for r in kept if r["fate"] == "seen" and r["found"] in ("passes", "void")]
    print(Counter(r["found"].split(":")[0] for r in kept), "survived:", [(r["kernel"], r["about"]) for r in survived])
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
