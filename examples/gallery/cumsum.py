"""Cumulative sums: each of 4 million elements is the sum of those up to its place."""

import numpy as np

import tensorir as tir

LENGTH, TILE, LANES = 1 << 22, 4096, 16
A = tir.placeholder((LENGTH,), "float32", name="A")
OUTPUT = tir.scan(A, name="S")
TOLERANCE = 1e-2


def lanes(s, inline=(), lanes=LANES):
    """Vectors one after another: lanes are combined with those before them, then with what was carried."""
    for stage in inline:
        s.compute_inline(stage)
    s.vectorize(s.split("S.i", [None, lanes])[1])
    return s


def tiles(s, inline=(), tile=TILE, lanes=LANES, ordered=False):
    """Totals of tiles, the scan of these, and scans of tiles, to whose elements it is added as they are stored.

    ordered: the combiner does not commute, so that the lanes of a total are combined as those of a scan are
    """
    s.redeclare("tiled_scan", tile=tile)
    for stage in inline:
        s.compute_inline(stage)
    if ordered:
        s.bind("S_total.t", "block.x").vectorize(s.split("S_total.u", [None, LANES])[1])
    else:  # four vectors of partial totals
        partial = s.rfactor("S_total", s.split("S_total.u", [None, 4 * LANES])[1])
        s.compute_at(partial, "S_total", "S_total.t").bind("S_total.t", "block.x")
        group, lane = s.split("S_total.rf.rf", [None, LANES])
        s.reorder("S_total.rf.u.0", group, lane).unroll(group).vectorize(lane)
    s.reverse_compute_inline("S").bind("S_local.t", "block.x")
    return s.vectorize(s.split("S_local.u", [None, lanes])[1])


FORMS = {"lanes": lanes, "tiles": tiles}


def schedule():
    return tiles(tir.Schedule(OUTPUT, target="opencl"))


def inputs(seed=0):
    return (np.random.default_rng(seed).random(LENGTH, "float32"),)


def by_numpy(x):
    return np.cumsum(x)


def by_torch(x):
    return x.cumsum(0)
