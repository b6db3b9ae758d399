"""Schedules of rows for processors: lanes along the row, a few accumulators each, rows in blocks for the cores.

A reduction has ``VECTORS`` vectors of partial results, so that an addition need not wait for the one before; at the end
of a row these are joined vector by vector, then four lanes at a time: one by one they would take as long as the row.
A row stays in the core's cache from one pass over it to the next. A division for each element costs as much as its
``exp``: rows are multiplied by an inverse.
"""

import tensorir as tir

LANES, VECTORS = 16, 4
BLOCK = 1 << 15
"""Elements of a block: enough to be worth handing to a core."""


def in_lanes(s, stage, axis, row):
    """Compute a reduction inside of the loop ``row``, in vectors of partial results."""
    parts = [s.rfactor(stage, s.split(f"{stage}.{axis}", [None, LANES * VECTORS])[1]).name]
    parts += [s.rfactor(stage, s.split(s.loops(stage)[-1], [None, lanes])[1]).name for lanes in (LANES, 4)]
    for name in (stage, *reversed(parts)):  # the last one first: it reads the others
        s.compute_at(name, "Y", row).set_scope(name.replace(".", "_"), "register")
    vector, lane = s.split(f"{parts[0]}.rf", [VECTORS, LANES])
    s.reorder(f"{parts[0]}.{axis}.0", vector, lane).unroll(vector).vectorize(lane)
    for name in parts[1:]:
        lane, rest = [x for x in s.loops(name) if x.startswith(f"{name}.rf")]
        s.reorder(rest, lane).unroll(rest).vectorize(lane)
    return s.unroll(s.loops(stage)[-1])


def rows_of(y, rows, columns, target):
    """A schedule of Y in blocks of rows and vectors of columns, and the loop over the rows of a block."""
    s = tir.Schedule(y, target)
    block, row = s.split("Y.i", [None, max(1, min(BLOCK // columns, rows // 4))])
    s.bind(block, "block.x").vectorize(s.split("Y.j", [None, LANES])[1])
    return s, row


def softmax(rows, columns, target="opencl"):
    """exp(x - max) over its sum: ``exp`` once, kept in the core's cache for the sum and the result."""
    X, k, q = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    largest = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="largest")
    E = tir.compute((rows, columns), lambda i, j: tir.exp(X[i, j] - largest[i]), name="E")
    total = tir.compute((rows,), lambda i: tir.sum(E[i, q], axis=q), name="total")
    inverse = tir.compute((rows,), lambda i: 1 / total[i], name="inverse")
    s, row = rows_of(tir.compute((rows, columns), lambda i, j: E[i, j] * inverse[i], name="Y"), rows, columns, target)
    s.compute_at(inverse, "Y", row).set_scope(inverse, "register")
    in_lanes(s, "total", "q", row)
    s.compute_at(E, "Y", row).set_scope(E, "shared").vectorize(s.split("E.j", [None, LANES])[1])
    return in_lanes(s, "largest", "k", row)


def log_softmax(rows, columns, target="opencl"):
    """x - max - log(sum of exp(x - max)): nothing but the input is kept."""
    X, k, q = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    largest = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="largest")
    total = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, q] - largest[i]), axis=q), name="total")
    shift = tir.compute((rows,), lambda i: largest[i] + tir.log(total[i]), name="shift")
    s, row = rows_of(tir.compute((rows, columns), lambda i, j: X[i, j] - shift[i], name="Y"), rows, columns, target)
    s.compute_at(shift, "Y", row).set_scope(shift, "register")
    return in_lanes(in_lanes(s, "total", "q", row), "largest", "k", row)


def layer_norm(rows, columns, target="opencl", epsilon=1e-5):
    """(x - mean) / sqrt(variance + epsilon) * g + b, the variance from differences: squares of large means cancel."""
    X = tir.placeholder((rows, columns), name="X")
    G, B = (tir.placeholder((columns,), name=n) for n in "GB")
    k, q = tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    total = tir.compute((rows,), lambda i: tir.sum(X[i, k], axis=k), name="total")
    mean = tir.compute((rows,), lambda i: total[i] / columns, name="mean")
    away = lambda i, j: X[i, j] - mean[i]  # noqa: E731
    squares = tir.compute((rows,), lambda i: tir.sum(away(i, q) * away(i, q), axis=q), name="squares")
    scale = tir.compute((rows,), lambda i: tir.rsqrt(squares[i] / columns + epsilon), name="scale")
    y = tir.compute((rows, columns), lambda i, j: away(i, j) * scale[i] * G[j] + B[j], name="Y")
    s, row = rows_of(y, rows, columns, target)
    s.compute_at(scale, "Y", row).set_scope(scale, "register")
    in_lanes(s, "squares", "q", row)
    s.compute_at(mean, "Y", row).set_scope(mean, "register")
    return in_lanes(s, "total", "k", row)


def rms_norm(rows, columns, target="opencl", epsilon=1e-5):
    """x / sqrt(mean of squares + epsilon) * g."""
    X, G = tir.placeholder((rows, columns), name="X"), tir.placeholder((columns,), name="G")
    k = tir.reduce_axis(columns, "k")
    squares = tir.compute((rows,), lambda i: tir.sum(X[i, k] * X[i, k], axis=k), name="squares")
    scale = tir.compute((rows,), lambda i: tir.rsqrt(squares[i] / columns + epsilon), name="scale")
    y = tir.compute((rows, columns), lambda i, j: X[i, j] * scale[i] * G[j], name="Y")
    s, row = rows_of(y, rows, columns, target)
    s.compute_at(scale, "Y", row).set_scope(scale, "register")
    return in_lanes(s, "squares", "k", row)


def sum_last(rows, columns, target="opencl"):
    """The sum of each row."""
    X, k = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k")
    total = tir.compute((rows,), lambda i: tir.sum(X[i, k], axis=k), name="total")
    s = tir.Schedule(tir.compute((rows,), lambda i: total[i], name="Y"), target)
    block, row = s.split("Y.i", [None, max(1, min(BLOCK // columns, rows // 4))])
    return in_lanes(s.bind(block, "block.x"), "total", "k", row)


def sum_first(rows, columns, target="opencl", pieces=16):
    """The sum of each column: of pieces of the rows first, then of the pieces; of few elements in one kernel."""
    X, k = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(rows, "k")
    s = tir.Schedule(tir.compute((columns,), lambda j: tir.sum(X[k, j], axis=k), name="Y"), target)
    if rows * columns <= 2 * BLOCK:
        block, vector, lane = s.split("Y.j", [None, VECTORS, LANES])
        s.reorder(block, "Y.k", vector, lane).unroll(vector).vectorize(lane)
        s.stage_out("Y", at=block, scope="register").vectorize(s.split("Y.out.j", [None, LANES])[1])
        return s.bind(block, "block.x")
    part = s.rfactor("Y", s.split("Y.k", [pieces, None])[0]).name
    columns_of(s, part, f"{part}.k.1", f"{part}.k.0")
    return columns_of(s, "Y", "Y.rf")


def sum_middle(rows, columns, target="opencl", middle=64):
    """Sums over the second of three axes, 64 rows each, which a core has to itself."""
    X, k = tir.placeholder((rows // middle, middle, columns), name="X"), tir.reduce_axis(middle, "k")
    y = tir.compute((rows // middle, columns), lambda i, j: tir.sum(X[i, k, j], axis=k), name="Y")
    return columns_of(tir.Schedule(y, target), "Y", "Y.k", "Y.i")


def columns_of(s, stage, axis, *block):
    """Sum rows of a stage in vectors of columns, eight rows at a time: memory is read in its own order."""
    rest, some = s.split(axis, [None, 8])
    vector, lane = s.split(f"{stage}.j", [None, LANES])
    s.reorder(*block, rest, vector, some, lane).unroll(some).vectorize(lane)
    return s.bind(block[0], "block.x") if block else s


OPERATORS = (softmax, log_softmax, layer_norm, rms_norm, sum_first, sum_middle, sum_last)
