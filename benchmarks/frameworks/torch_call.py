"""What a call of an operator of PyTorch costs: ours, and those that PyTorch's users write, all interleaved in one run.

python benchmarks/frameworks/torch_call.py [--calls 10000] [--json FILE]

64 floats, doubled, on one thread. Ours are exported folders (kernels in C are called by the dispatcher, those in OpenCL
by the folder's loader), kernels of this process on devices of C and OpenCL, and a kernel in C that does nothing, which
is what the operator itself costs. Next to them: an operator by define/impl that returns ``torch.empty`` of the result's
shape, ``torch.library.custom_op`` of the same, and ``torch.relu``. All are called as ``.default``. A round calls each
once, in another order; least and median are printed and written as JSON, for calls that need no gradient, those under
``torch.inference_mode()``, and those with the backward pass where there is one.
"""

import argparse
import contextlib
import ctypes
import importlib
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tensorir as tir
from tensorir.export.shipped import build, torch_c, torch_kernel, torch_operator
from tensorir.runtime.device import devices

N = 64
NOTHING = "int nothing(const void *call, void *const *buffers) { (void)call, (void)buffers; return 0; }\n"
ABOUT = {"name": "nothing", "arguments": [
    {"name": name, "dtype": "float32", "shape": [N], "role": role, "align": 16}
    for name, role in (("x", "input"), ("y", "output"))
]}  # fmt: skip
PEER = "define/impl of torch.empty"


def doubled(device: str) -> Any:
    """The kernel, and that of its gradient."""
    x, d = tir.placeholder((N,), name="x"), tir.placeholder((N,), name="d_y")
    target = device.partition(":")[0]
    return [
        tir.Schedule(tir.compute((N,), lambda i, t=t: t[i] * 2, name=name), target=target).build(device)
        for t, name in ((x, "y"), (d, "dx"))
    ]


def peers() -> dict[str, Any]:
    """What users write by hand."""
    library = torch.library.Library("peers", "FRAGMENT")
    library.define("made(Tensor x) -> Tensor")
    library.impl("made", lambda x: torch.empty((N,)), "CPU")
    peers.library = library  # type: ignore[attr-defined]  # it lives as long as the process

    @torch.library.custom_op("peers::custom", mutates_args=())
    def custom(x: torch.Tensor) -> torch.Tensor:
        return torch.empty((N,))

    return {
        PEER: torch.ops.peers.made.default,
        "torch.library.custom_op": torch.ops.peers.custom.default,
        "torch.relu": torch.relu,
    }


def nothing(folder: Path) -> Any:
    """An operator whose kernel in C does nothing, called without Python in between."""
    command = build.compiler()
    assert command is not None
    door = (Path(torch_c.__file__).with_name("door_torch.c")).read_bytes()
    path = folder / "nothing.so"
    path.write_bytes(build.compiled(command, {"door_torch.c": door, "nothing.c": NOTHING.encode()}))
    body = torch_c.CBody(ctypes.CDLL(str(path)).nothing, ABOUT)
    doors = torch_c.Doors(ctypes.CDLL(str(path)))
    return torch_operator.register("ours::nothing", [torch_kernel.Kernel(ABOUT, body)], doors=doors).default


def ours(folder: Path) -> dict[str, Any]:
    """Every way in which a kernel of ours is an operator here."""
    found = {}
    if build.compiler() is not None:
        found["ours, C that does nothing"] = nothing(folder)
    sys.path.insert(0, str(folder))
    for device in dict.fromkeys(d.language for d in devices() if d.usable and not d.simulator and d.language != "cuda"):
        kernel, gradient = doubled(device)
        found[f"ours, in process on {device}"] = kernel.torch(f"ours::{device}", backward={"x": gradient}).default
        kernel.export(folder / f"from_{device}", to=["torch"], name=f"folder::{device}")
        importlib.import_module(f"from_{device}")
        found[f"ours, folder written from {device}"] = getattr(torch.ops.folder, device).default
        if device == "c":
            found["ours, weights packed once"] = packed()
    x = torch.randn(N)
    for name, op in found.items():
        assert "nothing" in name or "packed" in name or torch.equal(op(x), 2 * x), name
    return found


def packed() -> Callable[[Any], Any]:
    """A product of 4 x 4 by 4 x 16 whose right side is packed once; what is timed has a Python function around it."""
    kernel = tir.ops.matmul(m=4, n=16, k=4, prepack=True).schedule(target="c").build("c").torch("ours::packed").default
    a, b = torch.ones(4, 4), torch.ones(4, 16)
    assert torch.equal(kernel(a, b), a @ b)
    return lambda _: kernel(a, b)


def timed(cases: dict[str, Callable[[], Any]], calls: int) -> dict[str, dict[str, float]]:
    """Least and median microseconds of each, one call of each at a time in random orders."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    rows, clock = list(cases.items()), time.perf_counter
    for _ in range(calls):
        random.shuffle(rows)
        for name, call in rows:
            begun = clock()
            call()
            taken[name].append(clock() - begun)
    return {
        name: {"least_us": min(t) * 1e6, "median_us": statistics.median(t) * 1e6, "over_peer_least_us": 0.0}
        for name, t in taken.items()
    }


def rounds(operators: dict[str, Any], calls: int) -> dict[str, Any]:
    """Every kind of call."""
    x, needing = torch.randn(N), torch.randn(N, requires_grad=True)
    ones = torch.ones(N)

    def both(op: Any) -> None:
        op(needing).backward(ones)
        needing.grad = None

    made: dict[str, Any] = {}
    for title, mode in (("no gradient", contextlib.nullcontext), ("inference mode", torch.inference_mode)):
        with mode():
            given = x.clone()
            cases = {name: (lambda op=op, given=given: op(given)) for name, op in operators.items()}
            made[title] = timed(cases, calls)
    able = {n: op for n, op in operators.items() if "in process" in n or n == "torch.relu"}
    made["forward and backward"] = timed({n: (lambda op=op: both(op)) for n, op in able.items()}, max(1, calls // 10))
    for rows in made.values():
        for row in rows.values():
            row["over_peer_least_us"] = row["least_us"] - rows.get(PEER, row)["least_us"]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        found = rounds(peers() | ours(Path(folder)), options.calls)
    for title, rows in found.items():
        print(f"\n{title}, us:\n{'':36} {'least':>9} {'median':>9} {'over peer':>10}")
        for name, row in sorted(rows.items(), key=lambda r: r[1]["least_us"]):
            print(f"{name:36} {row['least_us']:9.2f} {row['median_us']:9.2f} {row['over_peer_least_us']:10.2f}")
    about = {"calls": options.calls, "torch": torch.__version__, "python": platform.python_version()}
    if options.json:
        options.json.write_text(json.dumps({**about, "peer": PEER, "results": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
