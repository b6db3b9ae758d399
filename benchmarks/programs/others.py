"""Examples of Loopy, Exo, Helion, Kernel Tuner and Hannk, and programs that users of array languages ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.ndimage
import scipy.signal
import scipy.sparse
import scipy.spatial.distance
import torch
from operator_set import cross_entropy
from torch.nn import functional

import tensorir as tir
from programs import Array, Inputs, Peers, axes, philox, philox_by_numpy, program


@program("loopy/p2p-laplace")
def potential(given: Inputs) -> tuple[Any, Peers]:
    """Sums of 1 / r over all pairs, in three dimensions."""
    m, n, (r,) = 2048, 2048, axes(2048)
    x, y = given.uniform("x", m, 3), given.of("y", given.rng.random((n, 3), "float32") + 2)

    def cell(i: Any) -> Any:
        d = [x[i, a] - y[r, a] for a in range(3)]
        return tir.sum(tir.rsqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]), axis=r)

    def by_numpy(x: Array, y: Array) -> Array:
        square = sum(np.square(x[:, None, a] - y[:, a]) for a in range(3))
        return (1 / np.sqrt(square)).sum(1)

    return tir.compute((m,), cell, name="p"), {
        "numpy": by_numpy,
        "scipy": lambda x, y: (1 / scipy.spatial.distance.cdist(x, y)).sum(1),
        "torch": lambda x, y: torch.cdist(x, y).reciprocal().sum(1),
    }


@program("loopy/dg-diff-tensor-product")
def derivatives(given: Inputs) -> tuple[Any, Peers]:
    """Of elements of 8 x 8 x 8 nodes, along each direction by one matrix."""
    e, n, (p, q, r) = 256, 8, axes(8, 8, 8)
    u, d = given.normal("u", e, n, n, n), given.normal("d", n, n)
    shape = (e, n, n, n)
    dx = tir.compute(shape, lambda z, i, j, k: tir.sum(d[i, p] * u[z, p, j, k], axis=p), name="dx")
    dy = tir.compute(shape, lambda z, i, j, k: tir.sum(d[j, q] * u[z, i, q, k], axis=q), name="dy")
    dz = tir.compute(shape, lambda z, i, j, k: tir.sum(d[k, r] * u[z, i, j, r], axis=r), name="dz")

    def by(u: Any, d: Any) -> tuple[Any, ...]:
        return (d @ u.reshape(e, n, n * n)).reshape(shape), d @ u, u @ d.T

    return (dx, dy, dz), {"numpy": by, "torch": by}


@program("exo/sgemm-odd")
def odd_product(given: Inputs) -> tuple[Any, Peers]:
    m, n, k = 517, 389, 451
    a, b = given.normal("a", m, k), given.normal("b", k, n)
    return tir.nn.matmul(a, b, name="c"), {"numpy": np.matmul, "torch": torch.matmul}


@program("helion/jagged-softmax-mean")
def jagged(given: Inputs) -> tuple[Any, Peers]:
    """Softmax of each row, and the mean over the rows of each group, of which data say the number."""
    groups, most, n = 32, 24, 64
    lengths = given.rng.integers(1, most + 1, groups)
    ends = given.of("ends", np.concatenate([[0], np.cumsum(lengths)]).astype("int32"))
    total = int(lengths.sum())
    x, (r, q) = given.normal("x", total, n), axes(n, n)
    top = tir.compute((total,), lambda i: tir.max(x[i, r], axis=r), name="top")
    e = tir.compute((total, n), lambda i, j: tir.exp(x[i, j] - top[i]), name="e")
    s = tir.compute((total,), lambda i: tir.sum(e[i, q], axis=q), name="s")
    p = tir.compute((total, n), lambda i, j: e[i, j] / s[i], name="p")

    def cell(g: Any, j: Any) -> Any:
        t = tir.reduce_axis(ends[g + 1] - ends[g], most=most)
        return tir.sum(p[ends[g] + t, j], axis=t)

    m = tir.compute((groups, n), cell, name="m")
    mean = lambda g, j: m[g, j] / tir.cast(tir.maximum(ends[g + 1] - ends[g], 1), "float32")  # noqa: E731

    def by_numpy(ends: Array, x: Array) -> Array:
        e = np.exp(x - x.max(1, keepdims=True))
        return np.add.reduceat(e / e.sum(1, keepdims=True), ends[:-1]) / np.diff(ends)[:, None].astype("float32")

    def by_torch(ends: Any, x: Any) -> Any:
        return torch.segment_reduce(functional.softmax(x, 1), "mean", offsets=ends.long())

    return tir.compute((groups, n), mean, name="y"), {"numpy": by_numpy, "torch": by_torch}


@program("helion/cross-entropy")
def losses(given: Inputs) -> tuple[Any, Peers]:
    m, n = 512, 1000
    given.normal("x", m, n)
    given.whole("label", m, below=n)

    def by_numpy(x: Array, label: Array) -> Array:
        top = x.max(1)
        return np.mean(np.log(np.exp(x - top[:, None]).sum(1)) + top - x[np.arange(m), label])

    return cross_entropy(m, n), {
        "numpy": by_numpy,
        "torch": lambda x, label: functional.cross_entropy(x, label.long()),
    }


@program("kernel_tuner/expdist")
def distance(given: Inputs) -> tuple[Any, Peers]:
    """All pairs of points of two clouds, whose places are known so well."""
    n, (r, q) = 2048, axes(2048, 2048)
    a, b = given.normal("a", 2, n), given.normal("b", 2, n)
    sa, sb = (given.of(f"s{x}", given.rng.random(n, "float32") + np.float32(0.5)) for x in "ab")

    def pair(i: Any, j: Any) -> Any:
        d = [a[k, i] - b[k, j] for k in range(2)]
        return tir.exp(-(d[0] * d[0] + d[1] * d[1]) / (2.0 * (sa[i] * sa[i] + sb[j] * sb[j])))

    def by_numpy(a: Array, b: Array, sa: Array, sb: Array) -> Array:
        square = np.square(a[0][:, None] - b[0]) + np.square(a[1][:, None] - b[1])
        return np.exp(-square / (2 * (np.square(sa)[:, None] + np.square(sb)))).sum()

    def by_torch(a: Any, b: Any, sa: Any, sb: Any) -> Any:
        square = (a[0][:, None] - b[0]).square() + (a[1][:, None] - b[1]).square()
        return torch.exp(-square / (2 * (sa.square()[:, None] + sb.square()))).sum()

    y = tir.compute((), lambda: tir.sum(pair(r, q), axis=(r, q)), name="y")
    return y, {"numpy": by_numpy, "torch": by_torch}


@program("seed/hierarchical-model-logp+grad")
def eight_schools(given: Inputs) -> tuple[Any, Peers]:
    """Log density of many chains and its gradient by hand."""
    n, schools, (r, q, t) = 2048, 8, axes(8, 8, 8)
    mu, tau = given.normal("mu", n), given.of("tau", given.rng.random(n, "float32") + np.float32(0.5))
    theta = given.normal("theta", n, schools)
    y = given.of("y", np.array([28, 8, -3, 7, -1, 1, 18, 12], "float32"))
    sigma = given.of("sigma", np.array([15, 10, 16, 11, 9, 11, 10, 18], "float32"))
    z = tir.compute((n, schools), lambda c, j: (theta[c, j] - mu[c]) / tau[c], name="z")
    e = tir.compute((n, schools), lambda c, j: (y[j] - theta[c, j]) / sigma[j], name="e")
    square = tir.compute((n,), lambda c: tir.sum(z[c, r] * z[c, r] + e[c, r] * e[c, r], axis=r), name="square")
    logp = tir.compute((n,), lambda c: -0.5 * square[c] - schools * tir.log(tau[c]) - mu[c] * mu[c] / 50, name="logp")
    dtheta = tir.compute((n, schools), lambda c, j: e[c, j] / sigma[j] - z[c, j] / tau[c], name="dtheta")
    dmu = tir.compute((n,), lambda c: tir.sum(z[c, q], axis=q) / tau[c] - mu[c] / 25, name="dmu")
    dtau = tir.compute((n,), lambda c: (tir.sum(z[c, t] * z[c, t], axis=t) - schools) / tau[c], name="dtau")

    def by(mu: Any, tau: Any, theta: Any, y: Any, sigma: Any, log: Any) -> tuple[Any, ...]:
        z, e = (theta - mu[:, None]) / tau[:, None], (y - theta) / sigma
        logp = -0.5 * (z * z + e * e).sum(1) - schools * log(tau) - mu * mu / 50
        return logp, e / sigma - z / tau[:, None], z.sum(1) / tau - mu / 25, ((z * z).sum(1) - schools) / tau

    every = {"numpy": lambda *x: by(*x, np.log), "torch": lambda *x: by(*x, torch.log)}
    return (logp, dtheta, dmu, dtau), every


@program("loop/mandelbrot")
def mandelbrot(given: Inputs) -> tuple[Any, Peers]:
    """Rounds that each point stays within the circle, of 50."""
    n, rounds = 256, 50
    x, y = np.meshgrid(np.linspace(-2, 1, n, dtype="float32"), np.linspace(-1.5, 1.5, n, dtype="float32"))
    cr, ci = given.of("cr", x), given.of("ci", y)
    given.may_differ = 1e-3
    z = tir.compute((n, n), lambda i, j: (cr[i, j], ci[i, j], tir.cast(0, "int32")), name="z0")
    for t in range(rounds):

        def step(i: Any, j: Any, z: Any = z) -> Any:
            re, im, count = z[0][i, j], z[1][i, j], z[2][i, j]
            stays = re * re + im * im <= 4.0
            return (
                tir.where(stays, re * re - im * im + cr[i, j], re),
                tir.where(stays, 2.0 * re * im + ci[i, j], im),
                count + tir.where(stays, 1, 0),
            )

        z = tir.compute((n, n), step, name=f"z{t + 1}")

    def by(cr: Any, ci: Any, lib: Any) -> Any:
        re, im, count = cr, ci, lib.zeros(cr.shape, dtype=lib.int32)
        for _ in range(rounds):
            stays = re * re + im * im <= 4
            re, im = lib.where(stays, re * re - im * im + cr, re), lib.where(stays, 2 * re * im + ci, im)
            count += stays
        return count

    return z[2], {"numpy": lambda *x: by(*x, np), "torch": lambda *x: by(*x, torch)}


SECOND = tir.combiner(
    lambda a, b: (
        b[0] * a[0] + b[1] * a[2], b[0] * a[1] + b[1] * a[3], b[2] * a[0] + b[3] * a[2], b[2] * a[1] + b[3] * a[3],
        b[0] * a[4] + b[1] * a[5] + b[4], b[2] * a[4] + b[3] * a[5] + b[5],
    ),
    (1, 0, 0, 1, 0, 0), name="second", commutative=False)  # fmt: skip
"""Affine maps of two numbers, the later one after the earlier."""


@program("signal/biquad")
def biquad(given: Inputs) -> tuple[Any, Peers]:
    """A recurrence of second order as a scan of affine maps of two numbers."""
    rows, n = 16, 2048
    x = given.normal("x", rows, n)
    b, a = scipy.signal.butter(2, 0.2)
    b, a = b.astype("float32"), a.astype("float32")
    u = tir.compute((rows, n), lambda i, t: float(b[0]) * x[i, t] + float(b[1]) * x.get(i, t - 1, fill=0)
                    + float(b[2]) * x.get(i, t - 2, fill=0), name="u")  # fmt: skip
    constant = lambda c: tir.cast(float(c), "float32")  # noqa: E731
    maps = tir.compute((rows, n), lambda i, t: (
        constant(-a[1]), constant(-a[2]), constant(1), constant(0), u[i, t], constant(0)), name="maps")  # fmt: skip
    y = tir.scan(maps, axis=1, op=SECOND, name="y")[4]
    by_scipy = lambda x: scipy.signal.lfilter(b, a, x, axis=1)  # noqa: E731

    def by_numpy(x: Array) -> Array:
        out = np.zeros((n + 2, rows), "float32")
        own = np.pad(x.T, ((2, 0), (0, 0)))
        forward = b[0] * own[2:] + b[1] * own[1:-1] + b[2] * own[:-2]
        for t in range(n):
            out[t + 2] = forward[t] - a[1] * out[t + 1] - a[2] * out[t]
        return out[2:].T

    return y, {"numpy": by_numpy, "scipy": by_scipy}


@program("llm/kv-append-in-place")
def appended(given: Inputs) -> tuple[Any, Peers]:
    """A copy of a cache with a row at a position that data give: an update in place cannot be declared."""
    h, n, d = 8, 512, 64
    cache, new = given.normal("cache", h, n, d), given.normal("new", h, d)
    at = given.of("at", np.array([300], "int32"))
    y = tir.compute((h, n, d), lambda b, i, j: tir.where(at[0] == i, new[b, j], cache[b, i, j]), name="y")

    def by_numpy(cache: Array, new: Array, at: Array) -> Array:
        out = cache.copy()
        out[:, at[0]] = new
        return out

    return y, {
        "numpy": by_numpy,
        "torch": lambda cache, new, at: cache.index_copy(1, at.long(), new[:, None]),
    }


@program("sparse/sddmm")
def sampled_products(given: Inputs) -> tuple[Any, Peers]:
    n, d, count, (k,) = 512, 64, 8192, axes(64)
    a, b = given.normal("a", n, d), given.normal("b", n, d)
    row, column = given.whole("row", count, below=n), given.whole("column", count, below=n)
    y = tir.compute((count,), lambda t: tir.sum(a[row[t], k] * b[column[t], k], axis=k), name="y")
    return y, {
        "numpy": lambda a, b, row, column: np.einsum("td,td->t", a[row], b[column]),
        "numpy dense": lambda a, b, row, column: (a @ b.T)[row, column],
        "torch": lambda a, b, row, column: (a[row] * b[column]).sum(1),
        "torch dense": lambda a, b, row, column: (a @ b.T)[row, column],
    }


@program("tensor/mttkrp")
def factors(given: Inputs) -> tuple[Any, Peers]:
    n, rank, (j, k) = 64, 16, axes(64, 64)
    x, b, c = given.normal("x", n, n, n), given.normal("b", n, rank), given.normal("c", n, rank)
    y = tir.compute((n, rank), lambda i, r: tir.sum(x[i, j, k] * b[j, r] * c[k, r], axis=(j, k)), name="y")

    def steps(x: Any, b: Any, c: Any) -> Any:
        return ((x.reshape(n * n, n) @ c).reshape(n, n, rank) * b).sum(1)

    return y, {"numpy": steps, "torch": steps}


@program("image/integral")
def boxes(given: Inputs) -> tuple[Any, Peers]:
    """Sums along columns and rows, and means of boxes of 11 x 11 by four reads."""
    n, size = 512, 11
    out = n - size + 1
    x = given.uniform("x", n, n)
    whole = tir.scan(tir.scan(x, axis=0, op="sum", name="down"), axis=1, op="sum", name="whole")
    at = lambda i, j: whole.get(i, j, fill=0)  # noqa: E731

    def cell(i: Any, j: Any) -> Any:
        below, right = i + size - 1, j + size - 1
        return (at(below, right) - at(i - 1, right) - at(below, j - 1) + at(i - 1, j - 1)) / (size * size)

    y = tir.compute((out, out), cell, name="y")

    def by_numpy(x: Array) -> Array:
        whole = np.pad(x.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        return (whole[size:, size:] - whole[:-size, size:] - whole[size:, :-size] + whole[:-size, :-size]) / np.float32(
            size * size
        )

    half = size // 2
    return y, {
        "numpy": by_numpy,
        "scipy": lambda x: scipy.ndimage.uniform_filter(x, size)[half:-half, half:-half],
        "torch": lambda x: functional.avg_pool2d(x[None], size, 1)[0],
    }


@program("sim/life")
def generations(given: Inputs) -> tuple[Any, Peers]:
    n, rounds = 256, 8
    y = given.whole("x", n, n, below=2, dtype="uint8")
    for g in range(rounds):

        def near(i: Any, j: Any, y: Any = y) -> Any:
            return sum(y[(i + u + n) % n, (j + v + n) % n] for u in (-1, 0, 1) for v in (-1, 0, 1) if u or v)

        def cell(i: Any, j: Any, y: Any = y, near: Any = near) -> Any:
            count = near(i, j)
            return tir.where((count == 3) | ((count == 2) & (y[i, j] == 1)), 1, 0).astype("uint8")

        y = tir.compute((n, n), cell, name=f"y{g}")

    def by_numpy(x: Array) -> Array:
        for _ in range(rounds):
            p = np.pad(x, 1, mode="wrap")
            rows = p[:-2] + p[1:-1] + p[2:]
            count = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] - x
            x = ((count == 3) | ((count == 2) & (x == 1))).view("uint8")
        return x

    ring = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], "uint8")

    def by_scipy(x: Array) -> Array:
        for _ in range(rounds):
            count = scipy.ndimage.convolve(x, ring, mode="wrap")
            x = ((count == 3) | ((count == 2) & (x == 1))).view("uint8")
        return x

    def by_torch(x: Any) -> Any:
        for _ in range(rounds):
            p = torch.cat([x[-1:], x, x[:1]])
            p = torch.cat([p[:, -1:], p, p[:, :1]], 1)
            rows = p[:-2] + p[1:-1] + p[2:]
            count = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] - x
            x = ((count == 3) | ((count == 2) & (x == 1))).to(torch.uint8)
        return x

    return y, {"numpy": by_numpy, "scipy": by_scipy, "torch": by_torch}


@program("hannk/int8-conv-requant")
def requantised(given: Inputs) -> tuple[Any, Peers]:
    """Pixels of 8 bits, sums of 32, and results of 8 again by a factor in fixed point."""
    h, c, k, zero, (u, v, r) = 16, 32, 32, 128, axes(3, 3, 32)
    x = given.whole("x", 1, h, h, c, below=256, dtype="uint8")
    w = given.whole("w", k, 3, 3, c, least=-127, below=128, dtype="int8")
    out, factor = h - 2, 12345
    wide = lambda x: tir.cast(x, "int32")  # noqa: E731
    cell = lambda b, i, j, o: tir.sum((wide(x[b, i + u, j + v, r]) - zero) * wide(w[o, u, v, r]), axis=(u, v, r))  # noqa: E731
    total = tir.compute((1, out, out, k), cell, name="total")

    def code(b: Any, i: Any, j: Any, o: Any) -> Any:
        scaled = tir.cast((tir.cast(total[b, i, j, o], "int64") * factor + (1 << 23)) >> 24, "int32") + zero
        return tir.cast(tir.minimum(tir.maximum(scaled, 0), 255), "uint8")

    def windows(x: Any, lib: Any) -> Any:
        found = [x[0, u : u + out, v : v + out] for u in range(3) for v in range(3)]
        return lib.stack(found, 2).reshape(out * out, 9 * c)

    def by_numpy(x: Array, w: Array) -> Array:
        total = windows(x.astype("float32") - zero, np) @ w.reshape(k, -1).astype("float32").T  # exact up to 2 ** 24
        scaled = ((total.astype("int64") * factor + (1 << 23)) >> 24) + zero
        return np.clip(scaled, 0, 255).astype("uint8").reshape(1, out, out, k)

    def by_torch(x: Any, w: Any) -> Any:
        own, filters = x.permute(0, 3, 1, 2).float() - zero, w.permute(0, 3, 1, 2).float()
        total = functional.conv2d(own, filters).permute(0, 2, 3, 1)
        scaled = ((total.long() * factor + (1 << 23)) >> 24) + zero
        return scaled.clamp(0, 255).to(torch.uint8)

    return tir.compute((1, out, out, k), code, name="y"), {"numpy": by_numpy, "torch": by_torch}


@program("mcmc/ising-checkerboard")
def sweep(given: Inputs) -> tuple[Any, Peers]:
    """Half of the spins, then the other half, flip by chance of their neighbours' sum."""
    n, beta, seed = 256, 0.4, 7
    first = y = given.of("x", (given.rng.integers(0, 2, (n, n)) * 2 - 1).astype("int32"))
    for colour in (0, 1):

        def cell(i: Any, j: Any, y: Any = y, colour: int = colour) -> Any:
            near = y[(i + 1) % n, j] + y[(i + n - 1) % n, j] + y[i, (j + 1) % n] + y[i, (j + n - 1) % n]
            bits = philox(tir.cast(i * n + j, "uint32"), seed + colour)
            uniform = tir.cast(bits >> 8, "float32") * (1.0 / (1 << 24))
            chance = tir.exp(tir.cast(y[i, j] * near, "float32") * (-2.0 * beta))
            return tir.where(((i + j) % 2 == colour) & (uniform < chance), -y[i, j], y[i, j])

        y = tir.compute((n, n), cell, name=f"y{colour}")

    counter = np.arange(n * n, dtype="uint32").reshape(n, n)
    parity = np.add.outer(np.arange(n), np.arange(n)) % 2

    def by_numpy(x: Array) -> Array:
        for colour in (0, 1):
            near = np.roll(x, -1, 0) + np.roll(x, 1, 0) + np.roll(x, -1, 1) + np.roll(x, 1, 1)
            uniform = (philox_by_numpy(counter, seed + colour) >> 8).astype("float32") * np.float32(2**-24)
            chance = np.exp((x * near).astype("float32") * np.float32(-2 * beta))
            x = np.where((parity == colour) & (uniform < chance), -x, x)
        return x

    assert first is not y
    return y, {"numpy": by_numpy}


SEGMENTS = tir.combiner(
    lambda a, b: (tir.where(b[1] > 0, b[0], a[0] + b[0]), tir.maximum(a[1], b[1])), (0, 0), name="segments",
    commutative=False)  # fmt: skip


@program("scan/segmented")
def segmented(given: Inputs) -> tuple[Any, Peers]:
    """Running sums that begin again where a flag is set."""
    n = 1 << 17
    x = given.normal("x", n)
    flag = given.of("flag", (given.rng.random(n) < 0.01).astype("int32"))
    y, _ = tir.scan((x, flag), axis=0, op=SEGMENTS, name="s")

    def by_numpy(x: Array, flag: Array) -> Array:
        total = np.cumsum(x, dtype="float64")
        begin = np.maximum.accumulate(np.where(flag, np.arange(n), 0))
        before = np.where(begin > 0, total[begin - 1], 0)
        return (total - before).astype("float32")

    def by_torch(x: Any, flag: Any) -> Any:
        total = torch.cumsum(x, 0, dtype=torch.float64)
        begin = torch.cummax(torch.where(flag > 0, torch.arange(n), 0), 0).values
        return (total - torch.where(begin > 0, total[begin - 1], 0)).float()

    return y, {"numpy": by_numpy, "torch": by_torch}
