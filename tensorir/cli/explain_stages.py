"""Error codes of primitives that move, copy, split and replace stages, and of schedule templates."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

STAGES: dict[str, Entry] = {
    # --- placement
    "compute-at.nest-shared": Entry(
        "Other stages already live in the loops of this producer, so they cannot move with it alone.",
        't.stage_in("A", at="C.k", scope="register")\nt.compute_at("C", "R.i")',
        't.compute_at("C", "R.i")\nt.stage_in("A", at="C.k", scope="register")',
    ),
    "compute-at.not-read": Entry(
        "compute_at moves a producer to where it is read; nothing inside that loop reads it.",
        '# t.compute_at("C", loop) with a loop of a stage that does not read C',
        't.compute_at("C", "R.i")',
    ),
    "compute-at.other-readers": Entry(
        "Another stage outside the loop reads the producer as well. Move that reader first, or inline the producer.",
        "# two stages read C, and t.compute_at puts it into the loops of one",
        "# t.compute_inline(…), or compute_at both readers into one loop first",
    ),
    "compute-at.output": Entry(
        "An output is computed whole; what may move is what only feeds others. stage_out computes an output in tiles.",
        't = tir.Schedule((C, R))\nt.compute_at("C", "R.i")',
        't.compute_at("C", "R.i")',
    ),
    "compute-at.room": Entry(
        "The loop is vectorized, or deals a copy out to threads: no other stage can run inside it. Give "
        "a loop further out.",
        't.split("R.j", [None, 4])\nt.vectorize("R.j.1")\nt.compute_at("C", "R.j.1")',
        't.split("R.j", [None, 4])\nt.vectorize("R.j.1")\nt.compute_at("C", "R.j.0")',
    ),
    "compute-at.scheduled": Entry(
        "The producer's loops have been split, bound or vectorized already. Move it first, then schedule "
        "its new loops.",
        't.split("C.i", [None, 4])\nt.compute_at("C", "R.i")',
        't.compute_at("C", "R.i")\nt.split("C.k", [None, 4])',
    ),
    "compute-at.self": Entry(
        "The loop belongs to the stage that should move, or the stage is there already.",
        't.compute_at("C", "C.i")',
        't.compute_at("C", "R.i")',
    ),
    "compute-at.several-writers": Entry(
        "Several stages write the tensor, so one of them cannot move alone.",
        '# t.decompose_reduction("C", "C.k"), then t.compute_at("C", "R.i")',
        '# t.compute_at("C", "R.i"), then t.decompose_reduction("C", "C.k")',
    ),
    "inline.nest-shared": Entry(
        "Other stages already live in the loops of this producer.",
        "# stages were staged or placed in the producer's loops before compute_inline",
        "# compute_inline first",
    ),
    "inline.output": Entry(
        "An output has to be written; it cannot vanish into its readers.",
        's.compute_inline("C")',
        "# inline what only feeds others; an output's consumer goes into it with reverse_compute_inline",
    ),
    "inline.pure": Entry(
        "A stage that reduces, or writes several tensors, is no single expression that could be put where it is read.",
        't.compute_inline("C")',
        't.compute_at("C", "R.j")',
    ),
    "inline.scheduled": Entry(
        "The producer's loops have been scheduled already, and they would vanish.",
        'P = tir.compute((100, 48), lambda i, j: C[i, j] + 1, name="P")\n'
        'Q = tir.compute((100, 48), lambda i, j: P[i, j] * 2, name="Q")\n'
        't = tir.Schedule(Q)\nt.split("P.i", [None, 4])\nt.compute_inline("P")',
        'P = tir.compute((100, 48), lambda i, j: C[i, j] + 1, name="P")\n'
        'Q = tir.compute((100, 48), lambda i, j: P[i, j] * 2, name="Q")\n'
        't = tir.Schedule(Q)\nt.compute_inline("P")',
    ),
    "inline.several-writers": Entry(
        "Several stages write the tensor: there is no one expression to inline.",
        "# compute_inline of a tensor that two stages write",
        "# compute_at instead",
    ),
    "reverse-compute-at.guard": Entry(
        "The producer's tail (from a split that does not divide) cannot be said in the consumer's tile.",
        "# reverse_compute_at behind a ragged split",
        '# split with tail="exact", or place the consumer further out',
    ),
    "reverse-compute-at.made-later": Entry(
        "The consumer also reads something that is made after the place where it should run.",
        'D = tir.compute((100, 48), lambda i, j: tir.sum(A[i, k] - B[k, j], axis=k), name="D")\n'
        'E = tir.compute((100, 48), lambda i, j: C[i, j] + D[i, j], name="E")\n'
        't = tir.Schedule(E)\nt.reverse_compute_at("E", "C.i")',
        'D = tir.compute((100, 48), lambda i, j: tir.sum(A[i, k] - B[k, j], axis=k), name="D")\n'
        'E = tir.compute((100, 48), lambda i, j: C[i, j] + D[i, j], name="E")\n'
        't = tir.Schedule(E)\nt.reverse_compute_at("E", "D.i")',
    ),
    "reverse-compute-at.room": Entry(
        "The loop is vectorized, or deals a copy out to threads: no other stage can run inside it. Give "
        "a loop further out.",
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'Q = tir.compute((100, 64), lambda i, j: P[i, j] * 2, name="Q")\nt = tir.Schedule(Q)\n'
        't.split("P.j", [None, 4])\nt.vectorize("P.j.1")\nt.reverse_compute_at("Q", "P.j.1")',
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'Q = tir.compute((100, 64), lambda i, j: P[i, j] * 2, name="Q")\nt = tir.Schedule(Q)\n'
        't.split("P.j", [None, 4])\nt.vectorize("P.j.1")\nt.reverse_compute_at("Q", "P.j.0")',
    ),
    "reverse-compute-at.scattered": Entry(
        "One iteration of the loop does not compute a whole tile: the outer part of a split is inside.",
        't.split("C.j", [None, 8])\nt.reorder("C.j.1", "C.j.0")\nt.reverse_compute_at("R", "C.j.1")',
        't.split("C.j", [None, 8])\nt.reverse_compute_at("R", "C.j.0")',
    ),
    "reverse-compute-at.nest-shared": Entry(
        "Other stages already live in the loops of this consumer.",
        'D = tir.placeholder((48,), name="D")\n'
        'V = tir.compute((100, 48), lambda i, j: C[i, j] + D[j], name="V")\n'
        't = tir.Schedule(V)\nt.stage_in("D", at="V.i", scope="register")\nt.reverse_compute_at("V", "C.i")',
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-compute-at.not-elementwise": Entry(
        "The consumer reads the tile at a computed index, so the tile just made is not what it needs.",
        'V = tir.compute((100, 48), lambda i, j: C[99 - i, j], name="V")\n'
        't = tir.Schedule(V)\nt.reverse_compute_at("V", "C.i")',
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-compute-at.not-written": Entry(
        "Nothing inside that loop computes what the consumer reads.",
        "# reverse_compute_at of a consumer into a loop of a stage that it does not read",
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-compute-at.partial-reduction": Entry(
        "Inside a reduction loop the sums are not complete. Give a loop outside all reduction loops.",
        't.reverse_compute_at("R", "C.k")',
        't.reverse_compute_at("R", "C.j")',
    ),
    "reverse-compute-at.reduction": Entry(
        "The consumer reduces: its result needs more than the tile that one iteration makes.",
        'j = tir.reduce_axis(48, name="j")\n'
        'T = tir.compute((100,), lambda i: tir.sum(C[i, j], axis=j), name="T")\n'
        't = tir.Schedule(T)\nt.reverse_compute_at("T", "C.i")',
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-compute-at.scheduled": Entry(
        "The consumer's loops have been scheduled already. Move it first, then schedule its new loops.",
        't.split("R.i", [None, 4])\nt.reverse_compute_at("R", "C.i")',
        't.reverse_compute_at("R", "C.i")\nt.split("R.j", [None, 4])',
    ),
    "reverse-compute-at.self": Entry(
        "The loop belongs to the stage that should move.",
        't.reverse_compute_at("R", "R.i")',
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-compute-at.whole-axis": Entry(
        "An axis of the consumer is no axis of what it reads, so no tile bounds it.",
        'V = tir.compute((3, 100, 48), lambda n, i, j: C[i, j] + n, name="V")\n'
        't = tir.Schedule(V)\nt.reverse_compute_at("V", "C.i")',
        't.reverse_compute_at("R", "C.i")',
    ),
    "reverse-inline.elementwise": Entry(
        "The consumer must read each element of its producer once, at its own position, to be put into it.",
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'V = tir.compute((100, 64), lambda i, j: P[99 - i, j], name="V")\n'
        'tir.Schedule(V).reverse_compute_inline("V")',
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'V = tir.compute((100, 64), lambda i, j: P[i, j] * 2, name="V")\n'
        'tir.Schedule(V).reverse_compute_inline("V")',
    ),
    "reverse-inline.made-later": Entry(
        "The consumer also reads something that is made after the producer that it should go into.",
        'P = tir.compute((100, 48), lambda i, j: A[i, 0] + B[0, j], name="P")\n'
        'D = tir.compute((100, 48), lambda i, j: tir.sum(A[i, k] - B[k, j], axis=k), name="D")\n'
        'E = tir.compute((100, 48), lambda i, j: P[i, j] + D[i, j], name="E")\n'
        'tir.Schedule(E).reverse_compute_inline("E")',
        "# move the producer of the other operand first",
    ),
    "reverse-inline.nest-shared": Entry(
        "Other stages already live in the loops of this consumer.",
        't.stage_out("C", at="C.j", scope="register")\nt.stage_in("C", at="R.j", scope="register")\n'
        't.reverse_compute_inline("R")',
        't.stage_out("C", at="C.j", scope="register")\nt.reverse_compute_inline("R")',
    ),
    "reverse-inline.other-readers": Entry(
        "The producer's values are used elsewhere too, so they cannot be replaced.",
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'V = tir.compute((100, 64), lambda i, j: P[i, j] * 2, name="V")\n'
        'U = tir.compute((100, 64), lambda i, j: P[i, j] + 3, name="U")\n'
        'tir.Schedule((U, V)).reverse_compute_inline("V")',
        'P = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="P")\n'
        'V = tir.compute((100, 64), lambda i, j: P[i, j] * 2, name="V")\n'
        'tir.Schedule(V).reverse_compute_inline("V")',
    ),
    "reverse-inline.producer": Entry(
        "No plain stage writes what the consumer reads. A reduction needs stage_out first; the consumer "
        "then goes into the "
        "stage that copies the finished results.",
        't.reverse_compute_inline("R")',
        't.stage_out("C", at="C.j", scope="register")\nt.reverse_compute_inline("R")',
    ),
    "reverse-inline.pure": Entry(
        "Only a stage that computes one expression for each element can be put into its producer.",
        't.reverse_compute_inline("C")',
        't.stage_out("C", at="C.j", scope="register")\nt.reverse_compute_inline("R")',
    ),
    "reverse-inline.scheduled": Entry(
        "The consumer's loops have been scheduled already, and they would vanish.",
        't.stage_out("C", at="C.j", scope="register")\nt.split("R.i", [None, 4])\nt.reverse_compute_inline("R")',
        't.stage_out("C", at="C.j", scope="register")\nt.reverse_compute_inline("R")',
    ),
    # --- copies and buffers
    "layout.not-bijective": Entry(
        "A layout gives every element a cell of its own: each dimension is stored whole, or in pieces that cover it "
        "exactly once (o/16 and o%16; o/16, o/4%4 and o%4).",
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j/16, k, j%8")',
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j/16, k, j%16")',
    ),
    "layout.order": Entry(
        "order= is a permutation of the tensor's dimensions, outermost first.",
        't.layout("C", order=[0, 0])',
        't.layout("C", order=[1, 0])',
    ),
    "layout.own-buffer": Entry(
        "A parameter is laid out by the caller. Stage a copy with the layout that you want.",
        's.layout("A", pad=4)',
        's.stage_in("A", at="C.i", scope="register", pad=4)',
    ),
    "layout.pad": Entry(
        "pad= is a number of spare elements per row, at least 0.",
        't.layout("C", pad=-1)',
        't.layout("C", pad=4)',
    ),
    "layout.rank": Entry(
        "The left side of a layout names the tensor's dimensions, all of them and in order.",
        's.stage_in("B", at="C.i", scope="shared", layout="j -> j/16, j%16")',
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j/16, k, j%16")',
    ),
    "layout.syntax": Entry(
        "A layout is text: names of the dimensions, an arrow, and the storage dimensions, outermost first, each a name "
        "divided by (/) or cut off at (%) numbers.",
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j//16, k, j%16")',
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j/16, k, j%16")',
    ),
    "layout.fold": Entry(
        "What is xored onto a storage dimension has to stand plain in another one, or two elements would share a cell.",
        's.stage_in("B", at="C.k", scope="shared", layout="k, j -> k, j/4 ^ j/4%2, j%4")',
        's.stage_in("B", at="C.k", scope="shared", layout="k, j -> k, j/4 ^ k%8, j%4")',
    ),
    "layout.twice": Entry(
        "layout= says the order of the storage dimensions, so order= has nothing left to say.",
        's.stage_in("B", at="C.i", scope="shared", order=[1, 0], layout="k, j -> j, k")',
        's.stage_in("B", at="C.i", scope="shared", layout="k, j -> j, k")',
    ),
    "run-once.depends": Entry(
        "What runs ahead of time reads only inputs, constants and what runs ahead of time as well, and its kernel "
        "makes nothing else.",
        't.compute_at("C", "R.i")\nt.run_once("C")',
        't.run_once("C")',
    ),
    "run-once.lost": Entry(
        "A tensor is made ahead of time by a kernel of its own; the call would leave it none, or one that reads what "
        "every launch makes, so that the mark meant nothing.",
        't.run_once("C")\nt.compute_at("C", "R.i")',
        't.compute_at("C", "R.i")',
    ),
    "run-once.own-buffer": Entry(
        "Only what the program makes for itself can be made ahead of time: outputs are made in every launch, inputs "
        "are there.",
        's.run_once("B")',
        's.stage_in("B", at="root", scope="global", run="once")',
    ),
    "scope.unknown": Entry(
        'A copy lives in "shared", "register" or "global" memory.',
        's.stage_in("A", at="C.k", scope="local")',
        's.stage_in("A", at="C.k", scope="register")',
    ),
    "scope.atomic": Entry(
        "A stage reads or writes a result in the kernel in which another one adds to it atomically: nothing orders the "
        "two.",
        "# reverse_compute_at of a reader into the loops of an atomic sum",
        "# give the reader a nest of its own: a kernel behind",
    ),
    "scope.grid-wide": Entry(
        "A stage reads what another block of the same kernel writes, and nothing orders blocks.",
        "# a producer placed in the block loops of a reader that needs more than its own block's part",
        "# give the producer a nest of its own: a kernel before",
    ),
    "scope.overlap": Entry(
        "Several iterations of a loop write the same elements, and the hardware axis would run them at the same time.",
        "# bind of a loop over overlapping windows of a copy",
        "# keep the copy in registers, or place it outside the loop",
    ),
    "scope.private": Entry(
        "A copy is filled by threads (or blocks) part by part, and read where each sees only its own copy.",
        "# bind of the loops that fill a register copy, and not of those that read it",
        "# bind the reader's loops as well, or keep the copy in wider memory",
    ),
    "set-scope.own-buffer": Entry(
        "A parameter lives where the caller put it. Stage a copy.",
        's.set_scope("A", "shared")',
        's.stage_in("A", at="C.i", scope="register")',
    ),
    "stage-in.not-read": Entry(
        "stage_in copies what one iteration of a loop reads of a tensor; this loop reads nothing of it.",
        't.stage_in("A", at="R.i", scope="register")',
        't.stage_in("A", at="C.i", scope="register")',
    ),
    "stage-in.once": Entry(
        "A copy made ahead of time (run='once') is a kernel of its own at the root, of an input of the program.",
        't.stage_in("C", at="root", scope="global", run="once")',
        't.stage_in("B", at="root", scope="global", run="once")',
    ),
    "stage-in.ordered": Entry(
        "A tile that is opened again in each piece of a reduction is read only behind the first piece: a copy made "
        "before would read memory that nobody has written. Keep the tensor itself near.",
        's.reorder("C.k", "C.i", "C.j")\ns.stage_out("C", at="C.i")\ns.stage_in("C", at="C.init.j", scope="register")',
        's.reorder("C.k", "C.i", "C.j")\ns.stage_out("C", at="C.i")',
    ),
    "stage-in.run": Entry(
        "run= says when a copy at the root is made: with each launch, or once for all launches on the same arrays.",
        's.stage_in("B", at="root", scope="global", run="never")',
        's.stage_in("B", at="root", scope="global", run="once")',
    ),
    "stage-in.room": Entry(
        "The loop is vectorized, or deals a copy out to threads: no other stage can run inside it. Give "
        "a loop further out.",
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")\n'
        's.stage_in("B", at="C.j.1", scope="register")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.vectorize("C.j.1")\n'
        's.stage_in("B", at="C.k", scope="register")',
    ),
    "stage-in.root-scope": Entry(
        "A copy at the root is made by a kernel of its own and read by all blocks, so it lives in global memory.",
        's.stage_in("B", at="root", scope="shared")',
        's.stage_in("B", at="root", scope="global")',
    ),
    "stage-in.vector": Entry(
        "vector= must divide the row of the copy, and be 1, 2, 4, 8 or 16.",
        's.stage_in("A", at="C.i", scope="register", vector=3)',
        's.stage_in("A", at="C.i", scope="register", vector=4)',
    ),
    "stage-out.vector": Entry(
        "vector= says how the threads of a block write a copy in shared memory out together; it must divide the copy's "
        "rows, and be 1, 2, 4, 8 or 16.",
        's.stage_out("C", at="C.i", scope="shared", vector=5)',
        's.stage_out("C", at="C.i", scope="shared", vector=4)',
    ),
    "stage-in.written": Entry(
        "The tensor is written inside the loop as well: a copy made before would be out of date.",
        't.reverse_compute_at("R", "C.i")\nt.stage_in("C", at="C.i", scope="register")',
        't.stage_in("C", at="R.i", scope="register")',
    ),
    "stage-out.encloses": Entry(
        "stage_out takes a loop around the stage, outside its reduction.",
        't.stage_out("C", at="R.i", scope="register")',
        't.stage_out("C", at="C.i", scope="register")',
    ),
    "stage-out.guard": Entry(
        "The tail of a split that does not divide cannot be said in the tile that is copied out.",
        "# stage_out inside a ragged split that mixes several axes",
        '# split with tail="exact", or copy out further outside',
    ),
    "stage-out.index": Entry(
        "The stage writes at a computed index, so a tile of it has no box to copy.",
        "# stage_out of a scatter",
        "# let the stage write directly",
    ),
    "stage-out.not-elementwise": Entry(
        "The copy would read the tile at a computed index.",
        "# stage_out of a stage whose tile is no box",
        "# choose a loop further out",
    ),
    "stage-out.one-buffer": Entry(
        "The stage writes several tensors at once (a tuple, argmax); stage_out takes stages that write one.",
        "# stage_out of a compute with two results",
        "# let the stage write directly, or declare two computes",
    ),
    "stage-out.ordered": Entry(
        "The stage that closes a copy inside a reduction runs once for each piece, and the next piece reads what it "
        "wrote: it cannot be put off.",
        's.stage_out("C", at="C.k")\ns.stage_out("C.out", at="C.k")',
        's.stage_out("C", at="C.j", scope="shared")\ns.stage_out("C", at="C.k")',
    ),
    "stage-out.read-before": Entry(
        "Another stage inside the loop reads the result before the copy would be written out.",
        "# stage_out at a loop that also holds a reader of the result",
        "# stage_out further in, or before the reader is placed there",
    ),
    "stage-out.room": Entry(
        "The loop is vectorized, or deals a copy out to threads: no other stage can run inside it. Give "
        "a loop further out.",
        "# stage_out at a vectorized loop",
        "# stage_out at a loop around it",
    ),
    "stage-out.scattered": Entry(
        "One iteration of the loop does not compute a whole tile: the outer part of a split is inside.",
        's.split("C.j", [None, 8])\ns.reorder("C.j.1", "C.j.0")\ns.stage_out("C", at="C.j.1", scope="register")',
        's.split("C.j", [None, 8])\ns.stage_out("C", at="C.j.0", scope="register")',
    ),
    "stage-out.several-writers": Entry(
        "Several stages write the tensor, so one of them cannot move to a copy alone.",
        's.decompose_reduction("C", "C.k")\ns.stage_out("C", at="C.i", scope="register")',
        's.stage_out("C", at="C.i", scope="register")\ns.decompose_reduction("C", "C.k")',
    ),
    "stage-out.whole-axis": Entry(
        "An axis of the copy is no axis of the stage, so no tile bounds it.",
        "# stage_out of a stage that does not write along every dimension",
        "# let the stage write directly",
    ),
    # --- reductions and instructions
    "atomic.dtype": Entry(
        "Threads can add to float32, int32 and uint32 without a lock; other types need a second kernel.",
        "# s.atomic of a sum of float16",
        "# s.rfactor, and a kernel that adds up the partial results",
    ),
    "atomic.start": Entry(
        "Results have to start from 0 in a kernel before the one that adds to them: nothing orders blocks.",
        '# s.atomic("C") where C starts in the same nest',
        '# s.decompose_reduction("C", "C.i") at its outermost loop, then s.atomic("C")',
    ),
    "atomic.sum": Entry(
        "Only sums can be made by adding terms in any order.",
        '# s.atomic("R") of a stage that adds nothing up',
        '# s.atomic("C") of a sum',
    ),
    "decompose.encloses": Entry(
        "The initialisation goes right before a loop that encloses the whole reduction.",
        's.split("C.k", [None, 8])\ns.decompose_reduction("C", "C.k.1")',
        's.split("C.k", [None, 8])\ns.decompose_reduction("C", "C.k.0")',
    ),
    "decompose.no-reduction": Entry(
        "The stage has no reduction, or its initialisation is a stage of its own already.",
        't.decompose_reduction("R", "R.j")',
        't.decompose_reduction("C", "C.k")',
    ),
    "rfactor.one-update": Entry(
        "rfactor takes a stage that is one reduction with its own initialisation.",
        't.rfactor("R", "R.j")',
        't.rfactor("C", "C.k")',
    ),
    "rfactor.own-nest": Entry(
        "Other stages live in the loops of this one. Factor the reduction first, then stage copies.",
        's.stage_in("A", at="C.k", scope="register")\ns.rfactor("C", "C.k")',
        's.rfactor("C", "C.k")\ns.stage_in("A", at="C.rf.k", scope="register")',
    ),
    "decompose.repeats": Entry(
        "The loop, or one inside it, runs the whole reduction again for the same cells: each run must start from the "
        "initial value, which one initialisation outside cannot give.",
        '# R reads C with a halo: t.compute_at("C", "R.i"), then t.decompose_reduction("C", "R.i")',
        't.compute_at("C", "R.i")\nt.decompose_reduction("C", "C.k")',
    ),
    "rfactor.tail": Entry(
        "Partial results beyond the end of a reduction must hold the identity, and the tail of the reduction "
        "cannot be said in the axes of the partial results. No primitive makes such a tail.",
        "# a tail over loops that drive no axis alone",
        's.split("C.k", [None, 8], tail="exact")\ns.rfactor("C", "C.k.1")',
    ),
    "rfactor.reduce-loop": Entry(
        "rfactor gives each iteration of a reduction loop a partial result; this loop drives no "
        "reduction of the stage.",
        's.rfactor("C", "C.i")',
        's.split("C.k", [None, 8])\ns.rfactor("C", "C.k.1")',
    ),
    "tensorize.dialect": Entry(
        "The instruction has no text in the language of the schedule's target.",
        's = tir.Schedule(C, target="cuda")\ns.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\n'
        's.tensorize("C.j.1", "opencl.fma.f32x4")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.tensorize("C.j.1", "opencl.fma.f32x4")',
    ),
    "tensorize.last": Entry(
        "A later call would change the nest that an instruction performs. Tensorize when the rest is done.",
        "# s.tensorize(…), then a call that puts other work into the nest of the instruction",
        "# the other calls first, s.tensorize(…) last",
    ),
    "tensorize.needs": Entry(
        "The instruction needs something that the target does not have, such as a newer architecture.",
        "# an instruction with needs=('sm_80',) in a schedule for sm_75",
        '# tir.Schedule(C, target="cuda -arch=sm_80")',
    ),
    "tensorize.one-stage": Entry(
        "The nest to replace holds one stage in plain loops.",
        's.stage_in("A", at="C.j", scope="register")\ns.tensorize("C.j", "opencl.fma.f32x4")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.tensorize("C.j.1", "opencl.fma.f32x4")',
    ),
    "tensorize.same-meaning": Entry(
        "The nest does not compute what the instruction does; the message says where they differ and "
        "what the instruction computes.",
        's.tensorize("C.k", "opencl.fma.f32x4")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.tensorize("C.j.1", "opencl.fma.f32x4")',
    ),
    "tensorize.tail": Entry(
        "An instruction always computes all of its lanes; a tail inside the nest would not be respected.",
        'W = tir.placeholder((64, 50), name="W")\n'
        'D = tir.compute((100, 50), lambda i, j: tir.sum(A[i, k] * W[k, j], axis=k), name="D")\n'
        's = tir.Schedule(D)\ns.split("D.j", [None, 4])\ns.reorder("D.k", "D.j.1")\n'
        's.tensorize("D.j.1", "opencl.fma.f32x4")',
        's.split("C.j", [None, 4], tail="exact")\ns.reorder("C.k", "C.j.1")\ns.tensorize("C.j.1", "opencl.fma.f32x4")',
    ),
    "tensorize.unknown": Entry(
        "No instruction of that name is declared; the message lists close ones.",
        's.tensorize("C.k", "opencl.dot")',
        's.split("C.j", [None, 4])\ns.reorder("C.k", "C.j.1")\ns.tensorize("C.j.1", "opencl.fma.f32x4")',
    ),
    # --- templates
    "template.definition": Entry(
        "A template returned a schedule of declarations of its own, which do not mean what the workload's do: an "
        "element of the result is another one in exact arithmetic, or the arguments are others. What a template "
        "declares is compared at sampled elements, once for all configurations that declare the same.",
        'other = tir.compute((100, 48), lambda i, j: tir.sum(A[99 - i, k] * B[k, j], axis=k), name="C")\n'
        'w = tir.Workload("mm", C, {"flipped": (lambda s, c: tir.Schedule(other, s.target), tir.Space(x=[1]))})\n'
        "w.schedule()",
        'turned = tir.compute((100, 48), lambda i, j: tir.sum(B[k, j] * A[i, k], axis=k), name="C")\n'
        'w = tir.Workload("mm", C, {"turned": (lambda s, c: tir.Schedule(turned, s.target), tir.Space(x=[1]))})\n'
        "w.schedule()",
    ),
    "template.left-running": Entry(
        "A template's function returned while threads or processes that it started were still there: they would take "
        "time from every kernel that is timed in the same process. The trial is logged as illegal_schedule.",
        "# lambda s, c: threading.Thread(target=watch, daemon=True).start()",
        "# with ThreadPoolExecutor() as pool: …",
    ),
    "template.raised": Entry(
        "A template's function raised an exception of its own for a configuration; the trial is logged "
        "as illegal_schedule.",
        "# lambda s, c: s.split('C.i', [None, 64 // c['tile'] - 8]), with tile=[0]",
        "# a constraint of the space that leaves such configurations out",
    ),
    "template.result": Entry(
        "A template schedules s in place, or returns the schedule to use; it returned something else.",
        'w = tir.Workload("mm", C, {"default": (lambda s, c: 1, tir.Space(x=[1]))})\nw.schedule()',
        'w = tir.Workload("mm", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})\nw.schedule()',
    ),
    "template.target": Entry(
        "The template is written for another kind of target (CPU or GPU).",
        'w = tir.Workload("mm", C, {"gpu": (lambda s, c: s, tir.Space(x=[1]), ("gpu",))})\nw.schedule(target="opencl")',
        'w = tir.Workload("mm", C, {"gpu": (lambda s, c: s, tir.Space(x=[1]), ("gpu",))})\nw.schedule(target="cuda")',
    ),
    "template.unknown": Entry(
        "The workload has no template of that name.",
        'w = tir.Workload("mm", C, {"cpu": (lambda s, c: s, tir.Space(x=[1]))})\nw.schedule(template="fast")',
        'w = tir.Workload("mm", C, {"cpu": (lambda s, c: s, tir.Space(x=[1]))})\nw.schedule(template="cpu")',
    ),
}
