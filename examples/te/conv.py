"""A convolution as a GPU wants it, from plain loops to blocks that share their operands, one step at a time.

Layout: x(h, w, c, n), w(r, s, c, k), y(p, q, k, n), so that neighbouring threads read neighbouring images and filters.
Every function returns ``(schedule, what the step does)`` and starts from the step before it.

    python examples/te/conv.py
"""

from __future__ import annotations

from typing import Any

import tensorir as tir

SIZE, CHANNELS, IMAGES, FILTERS, WINDOW = 6, 16, 32, 32, 3
TILE, THREADS = 4, 4
"""Each thread computes TILE filters x TILE images; a block has THREADS x THREADS of them."""
CHUNK = 8
"""Channels that a block keeps in shared memory at a time."""

Step = tuple[tir.Schedule, str]


def define() -> Any:
    """P is X with a border of zeros; Y[p, q, k, n] = sum over r, s, c of P[p + r, q + s, c, n] * W[r, s, c, k]."""
    X = tir.placeholder((SIZE, SIZE, CHANNELS, IMAGES), name="X")
    W = tir.placeholder((WINDOW, WINDOW, CHANNELS, FILTERS), name="W")
    P = tir.compute((SIZE + 2, SIZE + 2, CHANNELS, IMAGES), lambda h, w, c, n: X.get(h - 1, w - 1, c, n), name="P")
    r, s = tir.reduce_axis(WINDOW, name="r"), tir.reduce_axis(WINDOW, name="s")
    c = tir.reduce_axis(CHANNELS, name="c")
    return tir.compute(
        (SIZE, SIZE, FILTERS, IMAGES),
        lambda p, q, k, n: tir.sum(P[p + r, q + s, c, n] * W[r, s, c, k], axis=(r, s, c)),
        name="Y",
    )


def plain(target: Any = "opencl") -> Step:
    """A loop nest for the border and one for the convolution, in the order of the definition."""
    return tir.Schedule(define(), target), "two kernels: one copies X into a larger array, one convolves"


def inlined(target: Any = "opencl") -> Step:
    """The border as a condition where X is read."""
    s, _ = plain(target)
    s.compute_inline("P")
    return s, "one kernel, which reads X or zero"


def blocks(target: Any = "opencl", inline: bool = True) -> Step:
    """Deal out the output: a pixel per block, a small tile of filters and images per thread."""
    s, _ = plain(target)
    pixel = s.fuse("Y.p", "Y.q")
    s.split("Y.k", [None, THREADS, TILE], names=["kb", "kt", "ki"])
    s.split("Y.n", [None, THREADS, TILE], names=["nb", "nt", "ni"])
    s.reorder(pixel, "Y.kb", "Y.nb", "Y.kt", "Y.nt", "Y.r", "Y.s", "Y.c", "Y.ki", "Y.ni")
    s.bind(pixel, "block.z").bind("Y.kb", "block.y").bind("Y.nb", "block.x")
    s.bind("Y.kt", "thread.y").bind("Y.nt", "thread.x")
    if inline:
        s.compute_inline("P")
    side = THREADS * TILE
    return s, f"a block per pixel and {side} x {side} filters and images, {TILE} x {TILE} of them per thread"


def accumulated(target: Any = "opencl", inline: bool = True) -> Step:
    """Sum in registers."""
    s, _ = blocks(target, inline)
    s.stage_out("Y", at="Y.nt", scope="register")
    return s, f"each thread sums its {TILE} x {TILE} results in registers and writes them once"


def shared(target: Any = "opencl", vector: int | None = None) -> Step:
    """Both operands through shared memory, fetched by all threads of a block together."""
    s, _ = accumulated(target, inline=False)
    s.split("Y.c", [None, CHUNK], names=["co", "ci"])
    s.stage_in("P", at="Y.co", scope="shared", vector=vector)
    s.stage_in("W", at="Y.co", scope="shared", vector=vector)
    s.compute_inline("P")  # now the fetch alone asks whether it is on the border
    return s, f"the block fetches {CHUNK} channels of its images and filters together; barriers are derived"


def registers(target: Any = "opencl", vector: int | None = None) -> Step:
    """A strip of each operand in registers: every shared element is read once per thread and channel."""
    s, _ = shared(target, vector)
    s.stage_in("P_shared", at="Y.ci", scope="register", vector=vector)
    s.stage_in("W_shared", at="Y.ci", scope="register", vector=vector)
    return s, f"{TILE} images and {TILE} filters are read into registers and used {TILE} times each"


def vectors(target: Any = "opencl") -> Step:
    """Vector copies, unrolled inner loops."""
    s, _ = registers(target, vector=4)
    s.unroll("Y.ki").unroll("Y.ni").unroll("Y.out.k")
    s.vectorize("Y.out.n")
    return s, "all copies move four floats at a time, and the thread's tile is unrolled"


STEPS = (plain, inlined, blocks, accumulated, shared, registers, vectors)


def reference(x: Any, w: Any) -> Any:
    """The same convolution with NumPy."""
    import numpy as np

    padded = np.pad(x, ((1, 1), (1, 1), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (WINDOW, WINDOW), axis=(0, 1))
    return np.einsum("pqcnrs,rsck->pqkn", windows, w)


def main() -> None:
    """Print each step's tree and time, and check its result."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (SIZE, SIZE, CHANNELS, IMAGES)).astype("float32")
    w = rng.integers(-4, 5, (WINDOW, WINDOW, CHANNELS, FILTERS)).astype("float32")
    for step in STEPS:
        s, what = step()
        f = s.build()
        assert (f(x, w) == reference(x, w)).all()
        print(f"\n== {step.__name__}: {what}\n{s}\n   {f.time(x, w).median_s * 1e6:.0f} us on {f.device.name}")


if __name__ == "__main__":
    main()
