"""Attention by rolling updates against PyTorch's on CPUs: the gallery's schedule, and a lambda for each variant.

    OMP_WAIT_POLICY=passive python benchmarks/attention.py                        # all shapes, then the variants
    OMP_WAIT_POLICY=passive python benchmarks/attention.py --shapes 8x512x64 --variants '' --masked '' --rounds 5

Shapes are heads x places x width, batch 1, float32. Each kernel is compared with scaled_dot_product_attention first
(variants: with its attn_mask; a soft-cap, which that has not, with PyTorch's own operations), then both are timed in
turn, in rounds of one slot each. Ratios are medians of the rounds' ratios, theirs over ours, with 95 % intervals: above
1 ours is faster. The script's own check of a kernel is s.check() at the declared tile sizes. PyTorch's threads spin
between calls and would take our cores: OMP_WAIT_POLICY=passive. Causal attention and a window are timed at shapes of
their own, ``--masked``. Writes benchmarks/results/attention.json, in which parts that are not measured stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from gallery import attention  # noqa: E402
from measuring import environment, seconds  # noqa: E402

from tensorir.runtime.device import open_device  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "attention.json"
SHAPES = [f"{h}x{n}x{d}" for d in (64, 128) for h, n in ((8, 512), (16, 512), (8, 1024), (8, 2048), (8, 4096))]
MASKED = [f"{h}x{n}x{d}" for d in (64, 128) for h, n in ((8, 512), (16, 512), (8, 1024), (8, 2048), (8, 4096))]
FLOOR, GOAL = 0.8, 1.1


def bias(name: str, heads: int, places: int) -> torch.Tensor | None:
    """What PyTorch's attention adds to scores for a variant; None where there is no such addend."""
    h, i, j = np.ogrid[:heads, :places, :places]
    if name == "soft-cap":
        return None
    if name == "ALiBi":
        return torch.from_numpy((-(i - j) * 2.0 ** -(h + 1.0)).astype("float32"))
    kept = {"causal": j <= i, "sliding window": (j <= i) & (i - j < 100), "documents": i // 96 == j // 96}[name]
    return torch.from_numpy(np.broadcast_to(np.where(kept, 0, -np.inf).astype("float32"), (1, places, places)).copy())


def theirs(name: str, arrays: tuple[np.ndarray, ...]) -> Callable[[], torch.Tensor]:
    """PyTorch's formulation of a variant, with its mask made ahead of time."""
    q, k, v = map(torch.from_numpy, arrays)
    attend = torch.nn.functional.scaled_dot_product_attention
    if name == "plain":
        return lambda: attend(q[None], k[None], v[None])[0]
    if name == "causal":
        return lambda: attend(q[None], k[None], v[None], is_causal=True)[0]
    if (mask := bias(name, q.shape[0], q.shape[1])) is not None:
        return lambda: attend(q[None], k[None], v[None], attn_mask=mask[None])[0]
    scale = q.shape[-1] ** -0.5
    return lambda: (30 * torch.tanh(q @ k.transpose(1, 2) * scale / 30)).softmax(-1) @ v


def row(name: str, shape: tuple[int, int, int], devices: list[str], rounds: int) -> dict[str, Any]:
    """Milliseconds, GF/s (without regard to what a mask leaves out) and ratios of one shape, on each device."""
    heads, places, width = shape
    arrays = attention.inputs(shape=shape)
    peer = theirs(name, arrays)
    want = peer().numpy()
    score = {"plain": lambda s, h, i, j: s, **attention.SCORES}[name]
    calls: list[tuple[Callable[[], Any], float]] = [(peer, seconds(peer, 3))]
    for text in devices:
        device = open_device(text)
        s = attention.schedule(attention.declare(*shape, score), device.target, masked=name in attention.MASKED)
        kernel = s.build(device)
        got = np.asarray(kernel(*arrays))
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
        bound = kernel.bind(*arrays)
        calls.append((bound, seconds(bound, 3)))
    turns = Rounds(calls, (0,))
    for _ in range(rounds):
        turns.run()
    peer_s, *ours = turns.samples
    gflop = 4e-9 * heads * places * places * width
    out: dict[str, Any] = {
        "torch_ms": 1e3 * middle(peer_s)[0],
        "torch_gflops": gflop / middle(peer_s)[0],
        "devices": {},
    }
    for text, slots in zip(devices, ours, strict=True):
        ratio, low, high = middle([t / o for t, o in zip(peer_s, slots, strict=True)])
        ms = 1e3 * middle(slots)[0]
        out["devices"][text] = {"ms": ms, "gflops": gflop / ms * 1e3, "ratio": ratio, "low": low, "high": high}
    out["ratio"] = max(d["ratio"] for d in out["devices"].values())
    told = {t: round(d["ratio"], 2) for t, d in out["devices"].items()}
    print(
        f"{name:15} {'x'.join(map(str, shape)):12} torch {out['torch_gflops']:5.0f} GF/s, torch / ours",
        told,
        flush=True,
    )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", type=lambda t: [x for x in t.split(",") if x], default=SHAPES)
    parser.add_argument("--variants", type=lambda t: [x for x in t.split(",") if x], default=list(attention.SCORES))
    parser.add_argument("--variant-shape", default="8x1024x64", help="at which variants are timed")
    parser.add_argument("--masked", type=lambda t: [x for x in t.split(",") if x], default=MASKED)
    parser.add_argument("--devices", type=lambda t: t.split(","), default=["opencl:0:0", "c:0"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    asked = [*options.shapes, *options.masked, options.variant_shape]
    sized = {text: tuple(map(int, text.split("x"))) for text in asked}
    before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    rows = {text: row("plain", sized[text], options.devices, options.rounds) for text in options.shapes}
    variants = {n: row(n, sized[options.variant_shape], options.devices, options.rounds) for n in options.variants}
    masked = {
        n: {text: row(n, sized[text], options.devices, options.rounds) for text in options.masked}
        for n in ("causal", "sliding window")
    }
    rows, variants = rows or before.get("rows", {}), {**before.get("variants", {}), **variants}
    masked = masked if options.masked else before.get("masked", {})
    ratios = [r["ratio"] for r in rows.values()]
    mean = float(np.exp(np.mean(np.log(ratios)))) if ratios else 0.0
    document = {
        "schema": 1, "environment": environment() | {"torch": torch.__version__, "load": os.getloadavg()[0]},
        "floor": FLOOR, "goal": GOAL, "least": min(ratios, default=0.0), "geomean": mean, "rows": rows,
        "variant_shape": options.variant_shape, "variants": variants, "masked": masked,
        "note": "torch's time over ours in the same rounds, the better of our devices; medians with 95 % intervals",
    }  # fmt: skip
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"geometric mean {mean:.2f}, least {document['least']:.2f} (floor {FLOOR}, goal {GOAL})")


if __name__ == "__main__":
    main()
