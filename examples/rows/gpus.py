"""Schedules of rows for GPUs: a block has a row, reads it once, and its threads combine their parts of a reduction.

The row is copied to shared memory, four elements a thread at a time, and gone through there. ``reduce_across`` gives
each thread every THREADS-th element, and combines the threads' results by shuffles in log2(THREADS) steps.
"""

import tensorir as tir

THREADS = 256


def in_threads(s, stage, axis):
    """Compute a reduction of a row by the threads of its block, before they go on."""
    if stage != "Y":
        s.compute_at(stage, "Y", "Y.i")
    rest, thread = s.split(f"{stage}.{axis}", [None, THREADS])
    return s.reorder(thread, rest).reduce_across(thread, "thread.x")


def rows_of(y, target):
    """A schedule of Y with a block for each row, its columns distributed to the threads, four to each."""
    s = tir.Schedule(y, target)
    _, thread, lane = s.split("Y.j", [None, THREADS, 4])
    return s.bind("Y.i", "block.x").bind(thread, "thread.x").vectorize(lane)


def read_once(s, *columns):
    """Copy a row to shared memory, where all that follows reads it; of what each column has, four at a time."""
    s.stage_in("X", at="Y.i", scope="shared", vector=4)
    for name in columns:
        s.stage_in(name, at="Y.j.1", scope="register", vector=4)
    return s


def softmax(rows, columns, target="cuda"):
    """exp(x - max) over its sum."""
    X, k, q = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    largest = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="largest")
    total = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, q] - largest[i]), axis=q), name="total")
    y = tir.compute((rows, columns), lambda i, j: tir.exp(X[i, j] - largest[i]) / total[i], name="Y")
    return read_once(in_threads(in_threads(rows_of(y, target), "total", "q"), "largest", "k"))


def log_softmax(rows, columns, target="cuda"):
    """x - max - log(sum of exp(x - max))."""
    X, k, q = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    largest = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="largest")
    total = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, q] - largest[i]), axis=q), name="total")
    y = tir.compute((rows, columns), lambda i, j: X[i, j] - largest[i] - tir.log(total[i]), name="Y")
    return read_once(in_threads(in_threads(rows_of(y, target), "total", "q"), "largest", "k"))


def layer_norm(rows, columns, target="cuda", epsilon=1e-5):
    """(x - mean) / sqrt(variance + epsilon) * g + b."""
    X = tir.placeholder((rows, columns), name="X")
    G, B = (tir.placeholder((columns,), name=n) for n in "GB")
    k, q = tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    total = tir.compute((rows,), lambda i: tir.sum(X[i, k], axis=k), name="total")
    away = lambda i, j: X[i, j] - total[i] / columns  # noqa: E731
    squares = tir.compute((rows,), lambda i: tir.sum(away(i, q) * away(i, q), axis=q), name="squares")
    y = tir.compute(
        (rows, columns), lambda i, j: away(i, j) * tir.rsqrt(squares[i] / columns + epsilon) * G[j] + B[j], name="Y"
    )
    return read_once(in_threads(in_threads(rows_of(y, target), "squares", "q"), "total", "k"), "G", "B")


def rms_norm(rows, columns, target="cuda", epsilon=1e-5):
    """x / sqrt(mean of squares + epsilon) * g."""
    X, G = tir.placeholder((rows, columns), name="X"), tir.placeholder((columns,), name="G")
    k = tir.reduce_axis(columns, "k")
    squares = tir.compute((rows,), lambda i: tir.sum(X[i, k] * X[i, k], axis=k), name="squares")
    y = tir.compute((rows, columns), lambda i, j: X[i, j] * tir.rsqrt(squares[i] / columns + epsilon) * G[j], name="Y")
    return read_once(in_threads(rows_of(y, target), "squares", "k"), "G")


def sum_last(rows, columns, target="cuda"):
    """The sum of each row."""
    X, k = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k")
    s = tir.Schedule(tir.compute((rows,), lambda i: tir.sum(X[i, k], axis=k), name="Y"), target)
    return in_threads(s.bind("Y.i", "block.x"), "Y", "k")


def sum_first(rows, columns, target="cuda"):
    """The sum of each column: 32 neighbouring columns a block, whose rows eight threads along y take in turn."""
    X, k = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(rows, "k")
    s = tir.Schedule(tir.compute((columns,), lambda j: tir.sum(X[k, j], axis=k), name="Y"), target)
    return columns_of(s)


def sum_middle(rows, columns, target="cuda", middle=64):
    """Sums over the second of three axes, as those over the first one for each of the others."""
    X, k = tir.placeholder((rows // middle, middle, columns), name="X"), tir.reduce_axis(middle, "k")
    y = tir.compute((rows // middle, columns), lambda i, j: tir.sum(X[i, k, j], axis=k), name="Y")
    return columns_of(tir.Schedule(y, target).bind("Y.i", "block.y"))


def columns_of(s):
    """Bind 32 columns to threads along x, and parts of each column to eight along y."""
    block, column = s.split("Y.j", [None, 32])
    rest, thread = s.split("Y.k", [None, 8])
    s.reorder(thread, rest).bind(block, "block.x").bind(column, "thread.x")
    return s.reduce_across(thread, "thread.y")


OPERATORS = (softmax, log_softmax, layer_norm, rms_norm, sum_first, sum_middle, sum_last)
