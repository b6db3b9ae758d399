"""Error codes of names, arguments and loop primitives. A refused call leaves the schedule as it was."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

SCHEDULE: dict[str, Entry] = {
    # --- names and arguments
    "argument.type": Entry(
        "An argument is of another type than the call takes; the message names it, what was given and what is "
        "expected. Axes, stages and tensors are given by name or by the handle that a primitive returned.",
        "s.split(0, [None, 16])",
        's.split("C.i", [None, 16])',
    ),
    "argument.value": Entry(
        "An argument is of the right type, but outside what the call takes; the message says what that is.",
        "s.check(seed=-1)",
        "s.check(seed=1)",
    ),
    "loop.ambiguous": Entry(
        "A short name fits several loops; the full name starts with the stage.",
        't.split("i", [None, 4])',
        't.split("C.i", [None, 4])\nt[R].split("i", [None, 4])',
    ),
    "loop.gone": Entry(
        "The loop existed, but an earlier call split, fused or moved it; the message says which call and into what.",
        's.split("C.i", [None, 4])\ns.bind("C.i", "block.x")',
        'outer, inner = s.split("C.i", [None, 4])\ns.bind(outer, "block.x")',
    ),
    "loop.unknown": Entry(
        "There is no loop of that name; the message lists the live ones.",
        's.split("C.x", [None, 4])',
        's.split("C.i", [None, 4])',
    ),
    "stage.gone": Entry(
        "The stage existed, but was inlined or replaced by an earlier call.",
        '# t.compute_inline("P"), then t.split of a loop of P',
        "# schedule the stage that reads it",
    ),
    "stage.unknown": Entry(
        "There is no stage of that name; the message lists the live ones.",
        's["D"]',
        's["C"]',
    ),
    "tensor.gone": Entry(
        "The tensor existed, but the stage that made it was inlined by an earlier call.",
        "# t.compute_inline(P), then t.stage_in(P, …)",
        "# stage the tensor first, then inline its producer into the copy",
    ),
    "tensor.unknown": Entry(
        "The schedule has no tensor of that name; the message lists those it has.",
        's.stage_in("X", at="C.k", scope="register")',
        's.stage_in("A", at="C.k", scope="register")',
    ),
    "undo.count": Entry(
        "undo takes back a number of calls between 0 and those made.",
        "s.undo(1)",
        's.split("C.i", [None, 4])\ns.undo(1)',
    ),
    "trace.malformed": Entry(
        "A trace is a JSON list of [primitive, arguments, options]; s.trace.to_json() writes one.",
        'tir.replay(C, "split C.i 16")',
        'tir.replay(C, \'[["split", ["C.i", [null, 16]], {}]]\')',
    ),
    "trace.unknown-primitive": Entry(
        "The trace names something that is not a schedule primitive. Nothing else can be called from a trace.",
        "tir.replay(C, '[[\"build\", [], {}]]')",
        'tir.replay(C, \'[["unroll", ["C.j"], {}]]\')',
    ),
    "with-source.frozen": Entry(
        "A schedule with edited text keeps the launch of the text it was made from: a further primitive, or undo, "
        "would change the launch and not the text.",
        's.with_source(s.source()).split("C.i", [None, 4])',
        's.split("C.i", [None, 4])\ns.with_source(s.source())',
    ),
    "with-source.text": Entry(
        "with_source takes the whole text of a source file, as s.source() gives it, with your changes.",
        's.with_source("")',
        's.with_source(s.source().replace("0.0f", "0.f"))',
    ),
    "schedule.too-deep": Entry(
        "The loop tree is nested deeper than Python's recursion allows.",
        "# hundreds of nested loops",
        "# fuse loops, or split into fewer parts",
    ),
    # --- loops
    "annotate.known-key": Entry(
        "Hints come from a closed set, so that a misspelt one cannot be ignored in silence.",
        's.annotate("C.k", "unrol", 4)',
        's.annotate("C.k", "unroll", 4)',
    ),
    "annotate.lost": Entry(
        "The call would replace a loop that has a hint by loops none of which repeats as many iterations one after "
        "another, or make it a loop that is not emitted as one. Hints are given last.",
        's.annotate("C.k", "unroll", 4)\ns.split("C.k", [None, 2])',
        's.split("C.k", [None, 8])\ns.annotate("C.k.1", "unroll", 4)',
    ),
    "annotate.serial": Entry(
        "The hint is for a plain loop; this one is already bound, unrolled or vectorized.",
        's.unroll("C.k")\ns.annotate("C.k", "unroll", 4)',
        's.annotate("C.k", "unroll", 4)',
    ),
    "annotate.value": Entry(
        "The unroll hint is a power of two, at least 1.",
        's.annotate("C.k", "unroll", 3)',
        's.annotate("C.k", "unroll", 4)',
    ),
    "assume.align": Entry(
        "An alignment is a power of two: at least the size of an element, and at most 64 bytes, which the memory of "
        "every runtime has.",
        's.assume("A", align=48)',
        's.assume("A", align=64)',
    ),
    "assume.argument": Entry(
        "Facts are about what the caller passes in: inputs and outputs. What the program makes for itself it knows.",
        't.assume("C", align=64)',
        't.assume("R", align=64)',
    ),
    "assume.not-an-index": Entry(
        "Bounds of elements are for index tensors: they say that every element it picks exists. No tensor is "
        "indexed by this one.",
        's.assume("A", low=0, high=10)',
        'rows = tir.placeholder((5,), "int32", name="rows")\n'
        'g = tir.Schedule(tir.compute((5, 64), lambda i, j: A[rows[i], j], name="G"))\n'
        'g.assume("rows", low=0, high=100)',
    ),
    "assume.nothing": Entry(
        "assume takes at least one fact: align=, low= or high=.",
        's.assume("A")',
        's.assume("A", align=64)',
    ),
    "assume.range": Entry(
        "No number lies in the range: low <= element < high holds of none. Facts about one tensor add up.",
        'rows = tir.placeholder((5,), "int32", name="rows")\n'
        'g = tir.Schedule(tir.compute((5, 64), lambda i, j: A[rows[i], j], name="G"))\n'
        'g.assume("rows", low=5, high=5)',
        'rows = tir.placeholder((5,), "int32", name="rows")\n'
        'g = tir.Schedule(tir.compute((5, 64), lambda i, j: A[rows[i], j], name="G"))\n'
        'g.assume("rows", low=5, high=6)',
    ),
    "bind.axis-free": Entry(
        "One stage would run two of its loops on the same hardware axis. Fuse the loops, or take another axis.",
        's.bind("C.i", "block.x").bind("C.j", "block.x")',
        's.bind(s.fuse("C.i", "C.j"), "block.x")',
    ),
    "bind.device-limit": Entry(
        "The target allows fewer threads in a block, or blocks in a direction. Split the loop and bind a part of it.",
        's = tir.Schedule(C, target="opencl -kind=gpu")\ns.bind("C.i", "thread.x").bind("C.j", "thread.y")',
        's = tir.Schedule(C, target="opencl -kind=gpu")\ns.bind("C.i", "block.x").bind("C.j", "thread.x")',
    ),
    "bind.one-extent-per-axis": Entry(
        "All loops of one kernel that are bound to one hardware axis have the same extent.",
        't.compute_at("C", "R.i")\nt.bind("R.j", "thread.x")\nt.split("C.k", [None, 4])\nt.bind("C.i", "thread.x")',
        't.compute_at("C", "R.i")\nt.bind("R.j", "thread.x")\nt.bind("C.j", "thread.x")',
    ),
    "bind.ordered": Entry(
        "The loop drives an ordered axis: each iteration reads what the one before wrote, so they cannot run at once.",
        "# s.bind of the loop of a scan",
        "# bind a spatial loop around it",
    ),
    "bind.reduction-has-one-owner": Entry(
        "The loop drives a reduction: on a hardware axis several threads would update one element at "
        "once. Bind a spatial "
        "loop, or give each thread a partial result with rfactor.",
        's.bind("C.k", "thread.x")',
        's.split("C.k", [None, 8])\ns.rfactor("C", "C.k.1")\ns.bind("C.rf.k.1", "thread.x")',
    ),
    "bind.serial": Entry(
        "The loop is already bound, unrolled or vectorized, and a loop has one such meaning. Split it before that, and "
        "give each part one.",
        's.unroll("C.j")\ns.bind("C.j", "thread.x")',
        's.split("C.j", [None, 4])\ns.unroll("C.j.1")\ns.bind("C.j.0", "thread.x")',
    ),
    "bind.symbolic-extent": Entry(
        "A hardware axis needs a constant extent; this loop's depends on an outer loop or on data.",
        "# s.bind of an inner loop whose extent is an outer index",
        "# bind the outer loop and keep the inner one serial",
    ),
    "bind.unknown-axis": Entry(
        "Loops are bound to block.x, block.y, block.z, thread.x, thread.y or thread.z, in both dialects.",
        's.bind("C.i", "blockIdx.x")',
        's.bind("C.i", "block.x")',
    ),
    "fuse.count": Entry(
        "fuse makes one loop of two or more.",
        's.fuse("C.i")',
        's.fuse("C.i", "C.j")',
    ),
    "fuse.name": Entry(
        "name= gives the new loop a name that is not in use.",
        's.fuse("C.i", "C.j", name="k")',
        's.fuse("C.i", "C.j", name="tile")',
    ),
    "fuse.directly-nested": Entry(
        "Fused loops are given outermost first, each the whole body of the one before.",
        's.fuse("C.i", "C.k")',
        's.fuse("C.i", "C.j")',
    ),
    "fuse.mixed-axes": Entry(
        "One loop cannot drive a spatial and a reduction axis of a stage at once.",
        's.fuse("C.j", "C.k")',
        's.fuse("C.i", "C.j")',
    ),
    "fuse.serial": Entry(
        "One of the loops is already bound, unrolled or vectorized.",
        's.bind("C.i", "block.x")\ns.fuse("C.i", "C.j")',
        's.bind(s.fuse("C.i", "C.j"), "block.x")',
    ),
    "fuse.symbolic-extent": Entry(
        "Fusing takes constant extents; a triangular loop has none.",
        "# s.fuse of a loop and one whose extent is its index",
        "# keep the loops apart, or bind the outer one",
    ),
    "parallel.block-axis": Entry(
        "parallel binds a loop to block.x, block.y or block.z, and none of them can take it; the message says why for "
        "each. Fuse loops into one before.",
        's.tile("C.i", "C.j", factors=[8, 8])\ns.parallel("C.i.0").parallel("C.j.0").parallel("C.i.1")\n'
        's.parallel("C.j.1")',
        's.parallel(s.fuse("C.i", "C.j"))',
    ),
    "parallel.independent": Entry(
        "Iterations that run at once must not depend on one another: those of a reduction all update one element, "
        "those of an ordered axis read what the one before wrote.",
        's.parallel("C.k")',
        's.parallel("C.i")',
    ),
    "parallel.serial": Entry(
        "The loop is already bound, unrolled or vectorized.",
        's.unroll("C.j")\ns.parallel("C.j")',
        's.parallel("C.j")',
    ),
    "parallel.symbolic-extent": Entry(
        "The number of blocks is fixed when a kernel is launched; this loop's depends on an outer loop or on data.",
        "# s.parallel of an inner loop whose extent is an outer index",
        "# s.parallel of the outer loop",
    ),
    "reorder.extent-depends": Entry(
        "The extent of a loop depends on a loop that would end up inside it.",
        "# s.reorder of a triangular loop to the outside",
        "# keep the loop that the extent depends on outside",
    ),
    "reorder.ordered": Entry(
        "An ordered axis keeps its place: each of its iterations reads what the one before wrote.",
        "# s.reorder of the loop of a scan",
        "# reorder the other loops around it",
    ),
    "reorder.perfect-nest": Entry(
        "Only loops directly inside one another can change places; another statement lives between these.",
        's.stage_in("A", at="C.j", scope="register")\ns.reorder("C.k", "C.i")',
        's.reorder("C.k", "C.i")\ns.stage_in("A", at="C.j", scope="register")',
    ),
    "reorder.repeats": Entry(
        "Each loop is given once.",
        's.reorder("C.j", "C.i", "C.j")',
        's.reorder("C.j", "C.i")',
    ),
    "reorder.vectorized": Entry(
        "A vectorized loop stays innermost. Reorder first, then vectorize.",
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")\ns.reorder("C.j.1", "C.k")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")',
    ),
    "reindex.syntax": Entry(
        "A reindex says the old axes, spatial ones before a | and reduce axes behind it, an arrow, and each new axis "
        "with what it is made of: old axes, parts of them (j/16, j%16), or several in parentheses, outermost first.",
        's.reindex("C", "i, j => t = (i, j)")',
        's.reindex("C", "i, j -> t = (i, j)")',
    ),
    "reindex.not-bijective": Entry(
        "Every iteration must be there once: each old axis stands on the right whole, or in parts that make it up. The "
        "message has two iterations that would be one, or one that would be none.",
        's.reindex("C", "i, j -> t = i")',
        's.reindex("C", "i, j -> t = (i, j)")',
    ),
    "reindex.axes": Entry(
        "Spatial axes stand before the |, reduce axes behind it, and no new axis is made of both: its loop would have "
        "to go through results and through the terms of one.",
        's.reindex("C", "i, j | k -> t = (i, k), j = j")',
        's.reindex("C", "i, j | k -> t = (i, j), k = k")',
    ),
    "reindex.nest": Entry(
        "The loops are not in one perfect nest: another stage is between them. Reindex before other stages are placed "
        "there.",
        't.compute_at("C", "R.i")\nt.reindex("R", "i, j -> t = (i, j)")',
        't.reindex("R", "i, j -> t = (i, j)")\nt.compute_at("C", "R.t")',
    ),
    "reindex.serial": Entry(
        "A loop is bound, unrolled or vectorized already. Reindex first.",
        's.bind("C.i", "block.x")\ns.reindex("C", "i, j -> t = (i, j)")',
        's.reindex("C", "i, j -> t = (i, j)")\ns.bind("C.t", "block.x")',
    ),
    "reindex.symbolic-extent": Entry(
        "The axes of a reindex have constant extents; this loop's depends on an outer loop or on data.",
        "# s.reindex of a loop whose extent is an outer index",
        "# reindex the other loops",
    ),
    "reindex.names": Entry(
        "A new axis would have the name of another loop, stage or tensor.",
        's.reindex("C", "i -> k = i")',
        's.reindex("C", "i -> rows = i")',
    ),
    "reindex.pad": Entry(
        "pad= takes new axes and the number of which their extents become multiples.",
        's.reindex("C", "i, j -> t = (i, j)", pad={"i": 16})',
        's.reindex("C", "i, j -> t = (i, j)", pad={"t": 16})',
    ),
    "reindex.pad-identity": Entry(
        "All that a padded reduction reads is packed, with zeros beyond its end, and a term of zeros is not what "
        "leaves the result as it is. Without reads= those terms are left out instead.",
        'E = tir.compute((8,), lambda i: tir.sum(tir.exp(A[i, k]), axis=k), name="E")\ne = tir.Schedule(E)\n'
        'e.reindex("E", "i | k -> i = i, t = k", pad={"t": 48}, reads={"A": "i, t"})',
        'E = tir.compute((8,), lambda i: tir.sum(tir.exp(A[i, k]), axis=k), name="E")\ne = tir.Schedule(E)\n'
        'e.reindex("E", "i | k -> i = i, t = k", pad={"t": 48})',
    ),
    "reindex.reads": Entry(
        "A packed operand is read at one place, is whole before the nest begins, and what is read of it moves with the "
        "named new axes alone.",
        's.reindex("C", "i, j | k -> t = (i, j), k = k", reads={"A": "k"})',
        's.reindex("C", "i, j | k -> t = (i, j), k = k", reads={"A": "t, k"})',
    ),
    "partition.lost": Entry(
        "The call would replace a loop that is cut into parts by loops none of which can be cut at the same places. "
        "Cuts at whole tiles move to the loop over tiles.",
        's.partition("C.i", [30])\ns.split("C.i", [None, 8])',
        's.partition("C.i", [32])\ns.split("C.i", [None, 8])',
    ),
    "partition.order": Entry(
        "The points at which a loop is cut are iterations in ascending order.",
        's.partition("C.i", [5, 1])',
        's.partition("C.i", [1, 5])',
    ),
    "partition.serial": Entry(
        "The loop is already bound, unrolled or vectorized. Cut it first.",
        's.unroll("C.j")\ns.partition("C.j", [1])',
        's.partition("C.j", [1])\ns.unroll("C.j")',
    ),
    "partition.symbolic-extent": Entry(
        "Cutting takes a constant extent; this loop's depends on an outer loop or on data.",
        "# s.partition of an inner loop whose extent is an outer index",
        "# cut the outer loop",
    ),
    "cut.inside": Entry(
        "A nest is cut between two of its iterations, so that both parts have some.",
        's.cut("C.i", 100)',
        's.cut("C.i", 99)',
    ),
    "cut.own-nest": Entry(
        "Other stages are in the nest, which would have to be cut with it. Cut first, then place stages in the parts.",
        't.compute_at("C", "R.i")\nt.cut("R.j", 8)',
        't.cut("R.j", 8)',
    ),
    "cut.serial": Entry(
        "A loop of the nest is bound, unrolled or the like already: each part is scheduled by itself, after the cut.",
        's.bind("C.i", "block.x")\ns.cut("C.i", 8)',
        's.cut("C.i", 8)\ns.bind("C.i", "block.x").bind("C.tail.i", "block.x")',
    ),
    "cut.spatial": Entry(
        "Iterations of a reduction make the same results together: the second part would start them again.",
        's.cut("C.k", 8)',
        's.rfactor("C", s.split("C.k", [None, 8])[0])',
    ),
    "cut.symbolic-extent": Entry(
        "Cutting takes constant extents; one of this nest's depends on an outer loop or on data.",
        "# s.cut of a nest with a loop whose extent is an outer index",
        "# s.partition of the outer loop",
    ),
    "specialize.divergent": Entry(
        "Threads of one block would run different versions of a body that fills shared memory. All threads of a block "
        "must arrive at a barrier; a condition on blocks and serial loops is the same for all of them.",
        's.bind("C.i", "block.x").bind("C.j", "thread.x")\ns.stage_in("A", "C.j", "shared")\n'
        's.specialize("C.j", "C.j < 8")',
        's.bind("C.i", "block.x").bind("C.j", "thread.x")\ns.stage_in("A", "C.j", "shared")\n'
        's.specialize("C.j", "C.i < 8")',
    ),
    "specialize.grammar": Entry(
        "A condition compares loops, numbers and elements of inputs, joined by and, or, not, with + - * // % between "
        "loops and numbers. There are no calls.",
        's.specialize("C.i", "C.i <")',
        's.specialize("C.i", "C.i % 4 == 0 and not C.i >= 8")',
    ),
    "specialize.lanes": Entry(
        "The lanes of a vector, and the threads that share a copy, run at once: they cannot choose between versions.",
        't.specialize("R.j", "R.j < 8")\nt.split("C.j", [None, 4])\n'
        'o, i = t.split("R.i", [None, 4])\nt.reorder(o, "R.j", i)\nt.vectorize(i).specialize(i, f"{i} < 2")',
        's.specialize("C.i", "C.i < 8")',
    ),
    "specialize.lost": Entry(
        "The call would replace a loop whose body has two versions, and the condition with it. Call specialize "
        "after it.",
        's.specialize("C.i", "C.i < 8")\ns.split("C.i", [None, 4])',
        's.split("C.i", [None, 4])\ns.specialize("C.i.0", "C.i.0 < 2")',
    ),
    "specialize.negative": Entry(
        "What stands under // or % may be negative, where C rounds toward zero and Python down.",
        's.specialize("C.i", "(C.i - 8) // 4 == 0")',
        's.specialize("C.i", "(C.i + 4) // 4 == 3")',
    ),
    "specialize.out-of-range": Entry(
        "The condition may read an element that the input does not have; a tail that overshoots counts.",
        's.specialize("C.i", "A[C.i + 1, 0] == 0")',
        's.specialize("C.i", "A[C.i, 0] == 0")',
    ),
    "specialize.scope": Entry(
        "A condition is about the loop whose body has two versions and the loops around it; the call would put one of "
        "them inside.",
        's.specialize("C.j", "C.i < 8")\ns.reorder("C.j", "C.i")',
        's.reorder("C.j", "C.i")\ns.specialize("C.i", "C.i < 8")',
    ),
    "specialize.type": Entry(
        "Loops and numbers are added and compared; an element of an input is compared with a whole number of its type, "
        "or stands alone where it is true or false.",
        's.specialize("C.i", "A[C.i, 0] == C.i")',
        's.specialize("C.i", "A[C.i, 0] == 1")',
    ),
    "specialize.unknown-name": Entry(
        "A condition names loops around the body, and inputs of the program; the message lists them.",
        's.specialize("C.i", "C.j < 8")',
        's.specialize("C.j", "C.j < 8")',
    ),
    "specialize.versions": Entry(
        "Every condition doubles the text of the body; more than 16 versions are refused.",
        's.specialize("C.j", "C.j < 1").specialize("C.j", "C.j < 2").specialize("C.j", "C.j < 3")\n'
        's.specialize("C.j", "C.j < 4").specialize("C.j", "C.j < 5")',
        's.specialize("C.j", "C.j < 1 or C.j >= 8")',
    ),
    "split.covers-extent": Entry(
        "The product of the factors must reach the extent; leave one factor None to have it inferred.",
        's.split("C.i", [6, 16])',
        's.split("C.i", [None, 16])',
    ),
    "split.divides": Entry(
        'With tail="exact" the product of the factors must be the extent; the default, "guard", adds a condition.',
        's.split("C.i", [None, 16], tail="exact")',
        's.split("C.i", [None, 20], tail="exact")\ns.split("C.j", [None, 5])',
    ),
    "split.factors": Entry(
        "Factors are a list of ints, outermost first, with at most one None.",
        's.split("C.i", 16)',
        's.split("C.i", [None, 16])',
    ),
    "split.inferred": Entry(
        "Only one factor can be inferred from the extent and the others.",
        's.split("C.i", [None, None, 4])',
        's.split("C.i", [None, 5, 4])',
    ),
    "split.names": Entry(
        "names= gives each new loop a name of its own that is not in use.",
        's.split("C.i", [None, 4], names=["io"])',
        's.split("C.i", [None, 4], names=["io", "ii"])',
    ),
    "split.positive": Entry(
        "Factors are at least 1.",
        's.split("C.i", [None, 0])',
        's.split("C.i", [None, 1])',
    ),
    "split.serial": Entry(
        "The loop is already bound, unrolled or vectorized. Split it first, then bind the parts.",
        's.bind("C.i", "block.x")\ns.split("C.i", [None, 4])',
        's.split("C.i", [None, 4])\ns.bind("C.i.0", "block.x")',
    ),
    "split.symbolic-extent": Entry(
        "Splitting takes a constant extent; this loop's depends on an outer loop or on data.",
        "# s.split of an inner loop whose extent is an outer index",
        "# split the outer loop",
    ),
    "split.tail": Entry(
        "tail= says what happens where the factors overshoot the extent.",
        's.split("C.i", [None, 16], tail="drop")',
        's.split("C.i", [None, 16], tail="guard")',
    ),
    "split.tail-factors": Entry(
        'The tails "peel", "balanced" and "shift" are about one loop over tiles and one inside each.',
        's.split("C.i", [None, 16, 4], tail="balanced")',
        'io, ii = s.split("C.i", [None, 16], tail="balanced")',
    ),
    "split.shift-store": Entry(
        "A shifted last tile repeats some iterations. Storing an element twice does no harm, adding to it twice does.",
        's.split("C.i", [None, 7], tail="shift")',
        's.stage_out("C", "root", "register")\ni0, _ = s.split("C.out.i", [None, 7], tail="shift")\n'
        's.compute_at("C", i0)',
    ),
    "tile.factors": Entry(
        "tile takes one factor for each axis.",
        's.tile("C.i", "C.j", factors=[8])',
        's.tile("C.i", "C.j", factors=[8, 8])',
    ),
    "unroll.serial": Entry(
        "The loop is already bound, unrolled or vectorized.",
        's.bind("C.j", "thread.x")\ns.unroll("C.j")',
        's.bind("C.j", "thread.x")\ns.unroll("C.k")',
    ),
    "unroll.size-limit": Entry(
        "Unrolling would copy the loop's body more often than compilers can bear. Unroll a part of the loop.",
        's.unroll("C.k").unroll("C.j")',
        's.split("C.k", [None, 8])\ns.unroll("C.k.1")',
    ),
    "unroll.symbolic-extent": Entry(
        "Unrolling takes a constant extent; this loop's depends on an outer loop or on data.",
        "# s.unroll of an inner loop whose extent is an outer index",
        "# unroll a loop of constant extent",
    ),
    "vectorize.innermost": Entry(
        "Only an innermost loop runs in vector lanes.",
        's.split("C.j", [None, 4])\ns.vectorize("C.j.1")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")',
    ),
    "vectorize.lanes": Entry(
        "Vectors have 2, 4, 8 or 16 lanes: split the loop and vectorize the inner part.",
        's.reorder("C.k", "C.j")\ns.vectorize("C.j")',
        's.split("C.j", [None, 8])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")',
    ),
    "vectorize.reduction": Entry(
        "The lanes of a reduction loop would update one element at once. Vectorize a spatial loop, or rfactor first.",
        's.split("C.k", [None, 4])\ns.vectorize("C.k.1")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")',
    ),
    "vectorize.serial": Entry(
        "The loop is already bound, unrolled or vectorized.",
        's.unroll("C.k")\ns.vectorize("C.k")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")',
    ),
    "vectorize.symbolic-extent": Entry(
        "Vector lanes take a constant extent; this loop's depends on an outer loop or on data.",
        "# s.vectorize of an inner loop whose extent is an outer index",
        "# split a loop of constant extent and vectorize its inner part",
    ),
}
