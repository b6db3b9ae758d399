"""What a plain call on NumPy arrays costs over a bound and waited launch, both interleaved in one run.

python benchmarks/frameworks/numpy_call.py [--calls 10000] [--device opencl] [--json FILE]

Four kernels: one that does next to nothing, so that a call's own time shows; a 1x1 convolution; two results and a
scalar; packing that has been done by ``prepack``. All on arrays that need no copy (``tir.empty``), the first also with
``out=``, as tensors of PyTorch where that is installed, and on arrays whose addresses make copies necessary. Each round
times one call of each kind, in another order; the least and the median of what a plain call takes over the bound and
waited launch are printed next to each other and written as JSON.
"""

import argparse
import importlib.util
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.runtime.device import open_device

HERE = Path(__file__).resolve().parent
Case = dict[str, Callable[[], Any]]


def filled(shape: tuple[int, ...], first: int = 0) -> Any:
    """An array of small numbers on which a device works in place."""
    made = tir.empty(shape)
    made[...] = np.arange(made.size).reshape(shape) % 7 + first
    return made


def bound(f: Any, *arrays: Any) -> Callable[[], Any]:
    launch = f.bind(*arrays)

    def run() -> Any:
        launch()
        return launch.wait()

    return run


def nothing(device: str) -> Case:
    """64 sums."""
    a, b = tir.placeholder((64,), name="a"), tir.placeholder((64,), name="b")
    f = tir.Schedule(tir.compute((64,), lambda i: a[i] + b[i], name="c")).build(device)
    x, y, out = filled((64,)), filled((64,), 1), filled((64,))
    apart = [tir.empty(80)[1:65] for _ in range(2)]
    apart[0][:], apart[1][:] = x, y
    held: list[Any] = [None] * 3
    cases: Case = {
        "bound and waited": bound(f, x, y),
        "f(a, b)": lambda: f(x, y),
        "f(a, b, out=c)": lambda: f(x, y, out=out),
        "f(a=a, b=b)": lambda: f(a=x, b=y),
        "f(a, b), three results held": lambda: (held.pop(0), held.append(f(x, y))),
        "f(a, b), unaligned, copied": lambda: f(*apart),
    }
    if importlib.util.find_spec("torch"):
        import torch

        p, q = torch.from_numpy(x), torch.from_numpy(y)
        cases["f(a, b), tensors of PyTorch"] = lambda: f(p, q)
    np.testing.assert_array_equal(f(x, y), x + y)
    np.testing.assert_array_equal(f(*apart), x + y)
    return cases


def convolution(device: str) -> Case:
    """A 1x1 convolution of 64 channels on 56 x 56 pixels, its default schedule."""
    work = tir.ops.conv2d(n=1, c=64, h=56, w=56, k=64, r=1, s=1)
    f = work.schedule(target="opencl").build(device)
    x, w = filled((1, 64, 56, 56), -3), filled((64, 64, 1, 1), -3)
    want = np.einsum("kc,nchw->nkhw", w[:, :, 0, 0], x)
    np.testing.assert_allclose(f(x, w), want, rtol=1e-5)
    return {"bound and waited": bound(f, x, w), "f(x, w)": lambda: f(x, w)}


def several(device: str) -> Case:
    """Two results and a scalar."""
    x, s = tir.placeholder((64,), name="x"), tir.scalar("s", "float32")
    y = tir.compute((64,), lambda i: x[i] * s, name="y")
    z = tir.compute((64,), lambda i: x[i] + s, name="z")
    f = tir.Schedule([y, z]).build(device)
    a = filled((64,))
    for got, want in zip(f(a, 2.0), (a * 2, a + 2), strict=True):
        np.testing.assert_array_equal(got, want)
    return {"bound and waited": bound(f, a, 2.0), "f(x, s)": lambda: f(a, 2.0)}


def prepacked(device: str) -> Case:
    """A product with a vector, its matrix packed once and for all."""
    w, x, k = tir.placeholder((64, 64), name="w"), tir.placeholder((64,), name="x"), tir.reduce_axis(64, name="k")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.sum(w[k, i] * x[k], axis=k), name="y"))
    s.stage_in("w", at="root", scope="global", order=[1, 0], run="once")
    weights, a = filled((64, 64), -3), filled((64,))
    g = s.build(device).prepack(w=weights)
    np.testing.assert_array_equal(g(a), a @ weights)
    return {"bound and waited": bound(g, a), "g(x)": lambda: g(a)}


def measured(cases: Case, calls: int) -> dict[str, dict[str, float]]:
    """Least and median microseconds of each case, and what is above the first one."""
    order, clock = list(cases.items()), time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(min(300, calls)):
        for _, call in order:
            call()
    shuffled = random.Random(0)
    for _ in range(calls):
        shuffled.shuffle(order)
        for name, call in order:
            started = clock()
            call()
            times[name].append(clock() - started)
    found = {n: {"least_us": min(t) * 1e6, "median_us": statistics.median(t) * 1e6} for n, t in times.items()}
    first = next(iter(found.values()))
    for row in found.values():
        row["over_bound_least_us"] = row["least_us"] - first["least_us"]
        row["over_bound_median_us"] = row["median_us"] - first["median_us"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--json", type=Path, default=HERE.parent / "results" / "numpy_call.json")
    options = parser.parse_args()
    found = {}
    print(f"{'us, least and median':44s} {'a call':>17s}   {'over bound and waited':>21s}")
    for make in (nothing, convolution, several, prepacked):
        found[make.__name__] = measured(make(options.device), options.calls)
        print((make.__doc__ or "").strip())
        for name, row in found[make.__name__].items():
            own, over = (f"{row[f'{w}least_us']:8.2f} {row[f'{w}median_us']:8.2f}" for w in ("", "over_bound_"))
            print(f"  {name:42s} {own:>17s}   {over:>21s}")
    about = {
        "calls": options.calls,
        "device": repr(open_device(options.device)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_average": os.getloadavg(),
        "results": found,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
