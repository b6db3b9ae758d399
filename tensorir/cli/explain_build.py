"""Error codes of lowering, printing, compiling and checking."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

BUILD: dict[str, Entry] = {
    # --- lowering
    "lower.box": Entry(
        "The part of a copy that is in use has no constant size, so no array can be declared for it.",
        "# a copy in shared memory of rows whose number depends on data",
        "# stage at a loop inside which the box has a constant size, or keep the tensor in global memory",
    ),
    "lower.c-threads": Entry(
        "C text runs each block as one function call: a block with several threads has no form there. Bind those loops "
        "to blocks, leave them serial, or use OpenCL, which runs such blocks on CPUs as well.",
        's.bind("C.i", "block.x").bind("C.j", "thread.x")\ns.source("c")',
        's.bind("C.i", "block.x")\ns.source("c")',
    ),
    "lower.divergent-barrier": Entry(
        "Threads exchange data inside a condition that not all threads of the block share: a barrier there would hang.",
        "# a stage in shared memory computed and read inside a ragged tail of a thread loop",
        '# split with tail="exact" around shared memory, or stage further out',
    ),
    "lower.form": Entry(
        "A program left the passes in a form that cannot be printed: a pass is missing, changed or in the wrong place.",
        "# tensorir.lower.pipeline.PASSES was edited",
        "# restore the list; each module says what its pass needs and gives",
    ),
    "lower.grid-wide": Entry(
        "A tensor is made and read by different blocks of one kernel, and blocks do not wait for each other.",
        "# a producer placed in a block loop, read by other blocks",
        "# place it inside the block loops that read it, or leave it in a nest of its own: a kernel before",
    ),
    "lower.intrinsic": Entry(
        "What a tensorized nest holds is no longer what its instruction computes.",
        "# calls after tensorize that changed its nest",
        "# call tensorize last",
    ),
    "lower.negative-division": Entry(
        "An index divides a value that may be negative. C rounds toward zero, tensorir toward minus infinity; by "
        "powers of two it shifts.",
        "# A[(i - 4) // 3 + 2]",
        "# A[(i - 4 + 6) // 3 - 2 + 2]: a multiple of the divisor inside, its quotient taken off outside",
    ),
    "lower.one-extent-per-axis": Entry(
        "Two loops of one kernel bound to the same hardware axis have different extents.",
        "# two nests that became one kernel with thread.x of 16 and of 32",
        "# split so that both bound loops have the same extent",
    ),
    "lower.pass-missing": Entry(
        "A pass of the pipeline has not run, so what it gives cannot be relied on.",
        "# a pass was removed from tensorir.lower.pipeline.PASSES",
        "# restore the list",
    ),
    "lower.pipeline": Entry(
        "After lowering, no iteration of a pipelined loop begins with copies into shared memory that stay within it.",
        "# a loop marked by pipeline whose copies other loops read as well",
        "# stage_in at the pipelined loop itself",
    ),
    "lower.pad-global": Entry(
        "A padded tail runs whole tiles without a condition, so the stage needs a copy of its own that has room beyond "
        "the tensor, and reads that can be held inside theirs.",
        's.split("C.i", [None, 24], tail="pad")\ns.source()',
        's.split("C.i", [None, 24], tail="pad")\ns.stage_out("C", at="C.i.0")\ns.source()',
    ),
    "lower.scope-across-kernels": Entry(
        "A tensor in shared memory or registers is used by two kernels; these memories end with their kernel.",
        't.set_scope("C", "shared")\nt.source()',
        't.compute_at("C", "R.i")\nt.set_scope("C", "register")\nt.source()',
    ),
    "lower.unexpanded": Entry(
        "A stage still has guards or an initialisation late in the passes: one that should have expanded "
        "them is missing.",
        "# tensorir.lower.pipeline.PASSES was edited",
        "# restore the list",
    ),
    # --- printing
    "codegen.constant-type": Entry(
        "Values known at compile time cannot be printed in this storage type.",
        '# tir.constant(np.ones(8, "float16"))',
        '# tir.constant(np.ones(8, "float32")), and cast where it is used',
    ),
    "codegen.intrinsic": Entry(
        "The instruction has no text in this dialect.",
        "# an OpenCL instruction in a schedule printed as CUDA",
        "# tensorize with an instruction of that dialect",
    ),
    "codegen.intrinsic-alignment": Entry(
        "The instruction needs its tile at an address that is proved to be a multiple of some bytes.",
        "# a tile that starts at any element",
        "# tile sizes, or a padded copy, that keep every tile aligned",
    ),
    "codegen.intrinsic-stride": Entry(
        "The elements or rows of the tile do not lie where the instruction reads them.",
        "# a tile of a matrix whose rows are further apart than the instruction can say",
        "# stage the operand in a copy with the layout that it wants",
    ),
    "codegen.node": Entry(
        "An expression cannot be printed in this dialect.",
        "# a definition or instruction that uses an operation the dialect does not have",
        "# say it with other operations, or choose another target",
    ),
    "codegen.not-lowered": Entry(
        "A statement is defined in the language but has no lowering for this target yet.",
        "# an asynchronous copy or a ring of barriers",
        "# a schedule without it",
    ),
    "codegen.unaligned-vector": Entry(
        "A vector access needs an address that is proved to be a multiple of the vector.",
        "# vectorize a loop over rows of 37 floats",
        "# pad the copy (stage_in(…, pad=…)), or vectorize fewer lanes",
    ),
    "codegen.vector-storage": Entry(
        "Floats of 16 and 8 bits are kept as storage where the device has no arithmetic for them, and have no "
        "vector accesses yet.",
        '# vectorize a loop that reads a "float16" tensor',
        "# leave that loop scalar",
    ),
    # --- compiling
    "compile.grid": Entry(
        "The launch has no blocks, or more along an axis than the device allows; block.x has the largest limit.",
        "# bind a loop of 100000 to block.y on a CUDA device",
        "# bind it to block.x, or split it",
    ),
    "compile.language": Entry(
        "The source is in one language and the device runs the other.",
        '# tir.Schedule(C, target="cuda") built for an OpenCL device from its CUDA text',
        '# s.source("opencl") is the same schedule in the other dialect',
    ),
    "compile.nvrtc": Entry(
        "NVIDIA's compiler refused the text. The error's log holds its words; edited text is the usual cause.",
        "# s.with_source(text that is not CUDA C++)",
        '# start from s.source("cuda")',
    ),
    "compile.crashed": Entry(
        "The process in which text was compiled that has not passed before died: the message has its signal. Arrays of "
        "gigabytes do that, or a fault of the compiler.",
        "# s.with_source(text with a constant of 20 GB).build()",
        "# the array as an argument",
    ),
    "compile.time-limit": Entry(
        "Text that has not passed before was compiled in a process of its own, and the compiler had not ended in two "
        "minutes: loops that are unrolled without end, or arrays of gigabytes.",
        "# s.with_source(text with a constant of 20 GB).build()",
        "# the array as an argument",
    ),
    "compile.c-text": Entry(
        "The C compiler refused the text. The error's log holds its words; edited text is the usual cause.",
        's = tir.Schedule(C, target="c")\ns.with_source("static void C_kernel(").build()',
        's = tir.Schedule(C, target="c")\ns.with_source(s.source()).build()',
    ),
    "compile.opencl": Entry(
        "The device's compiler refused the text. The error's log holds its words; edited text is the usual cause.",
        's.with_source("void C_kernel(").build()',
        "s.with_source(s.source()).build()",
    ),
    "compile.sass": Entry(
        "nvdisasm could not read the machine code.",
        "# nvdisasm of an older version than NVRTC",
        '# pip install "cuda-toolkit[nvrtc,cudart,crt,nvdisasm]==13.*", which keeps them at one version',
    ),
    "compile.registers": Entry(
        "Warpgroups ask for more registers than the compiler lets a block begin with, and wait for them for ever: "
        "the text says that several blocks share a multiprocessor.",
        "# edited text: __launch_bounds__(384, 2) on a kernel with tir_registers_up<232>()",
        "# __launch_bounds__(384, 1)",
    ),
    "compile.shared-memory": Entry(
        "The kernel's copies need more shared memory than a block of this device has.",
        'W = tir.placeholder((64, 8192), name="W")\n'
        'D = tir.compute((100, 8192), lambda i, j: tir.sum(A[i, k] * W[k, j], axis=k), name="D")\n'
        's = tir.Schedule(D)\ns.stage_in("W", at="D.i", scope="shared")\ns.build()',
        's.split("C.k", [None, 8])\ns.reorder("C.k.0", "C.j")\ns.stage_in("B", at="C.k.0", scope="shared")\ns.build()',
    ),
    "compile.signature": Entry(
        "The kernels of the text do not have the names or arguments that the schedule launches.",
        's.with_source(s.source().replace("C_kernel", "my_kernel")).build()',
        "s.with_source(s.source()).build()",
    ),
    "compile.threads": Entry(
        "A block has more threads than the device allows, in all or along one axis.",
        "# a schedule for a larger device, replayed for a smaller one",
        "# split the bound loops into smaller parts",
    ),
    # --- checking
    "barrier.divergent": Entry(
        "A barrier is reached by some threads of a block only: on a device the others would wait for ever.",
        "# a verdict of s.check(): a barrier inside a condition on the thread",
        '# split with tail="exact" around shared memory',
    ),
    "emulate.cluster": Entry(
        "The blocks of a grid make no whole clusters, or the clusters are none that the emulator runs: up to eight "
        "blocks along x.",
        "# __cluster_dims__(2, 1, 1) on a grid of 3 blocks",
        "# a multiple of the blocks of a cluster",
    ),
    "emulate.compile": Entry(
        "The C++ compiler refused the CUDA text with which the emulator runs it on the CPU; "
        "the error's log holds its words.",
        "# edited text that is not CUDA C++",
        '# start from s.source("cuda")',
    ),
    "emulate.map": Entry(
        "A tensor map that no device would take: up to five dimensions, boxes of up to 256 elements along each, of "
        "which every so many-th is copied (1 to 8, in the last dimension each), rows of multiples of 16 bytes; with a "
        "swizzle, the rows of the box are as wide as that.",
        "# a box of 128 x 32 elements of 2 bytes with a swizzle of 128 bytes",
        "# 64 elements of 2 bytes in a row, or a swizzle of 64 bytes",
    ),
    "emulate.no-compiler": Entry(
        "Running CUDA text on the CPU takes a C++ compiler.",
        '# s.check(level="emulate") on a machine without g++ or clang++',
        "$ sudo apt-get install g++",
    ),
    "emulate.threads": Entry(
        "Blocks have up to 1024 threads, and up to what the text says in __launch_bounds__; this one has more.",
        "# s.check(level='emulate') of a schedule with very large blocks",
        "# smaller thread extents",
    ),
    "emulate.crashed": Entry(
        "The text ended the process that it ran in, which is not yours: it divides by zero, say, or calls "
        "a function of C on memory that is not there. The message has the signal and, where known, thread and line.",
        "# s.with_source(text with 1000 / (threadIdx.x - threadIdx.x)).check(level='emulate')",
        "# s.with_source(text that divides by what is not 0).check(level='emulate')",
    ),
    "emulate.time": Entry(
        "A run of the text took longer than a minute of processor time, and 5 us for each term of the definition: "
        "usually a loop that does not end. The message has the line where it was.",
        "# s.with_source(text with for (;;)).check(level='emulate')",
        "# s.with_source(text whose loops end).check(level='emulate')",
    ),
    "emulate.own-memory": Entry(
        "The arrays that each thread has to itself are larger than any GPU has room for.",
        "# s.check(level='emulate') of a schedule that stages all of a matrix in registers",
        "# smaller tiles, or more threads for them",
    ),
    "emulate.not-run": Entry(
        "Inline assembly, and what stands between #if and #endif, may be run by a device and not by the emulator. Such "
        "parts are right when they are those that tensorir emits, which its tests pin; this one is another, so nothing "
        "was shown of it. Everything else of the text was run and is right.",
        '# s.with_source(text with .ca for .cg in tir_copy_async_16).check(level="emulate")',
        '# the function as tensorir emits it, or check(level="device")',
    ),
    "emulate.undefined": Entry(
        "The emulator has functions of its own for those that begin with tir_ and for halves; a device runs those of "
        "the text, which does not define this one.",
        "# edited text that calls tir_hold(c), without the function in front of the kernel",
        "# the function, as it stands in front of kernels that call it",
    ),
    "emulate.lacks": Entry(
        "The text calls a function whose instruction the target's architecture does not have.",
        '# tir_wgmma_fence() in a text for "cuda -arch=sm_80"',
        '# target="cuda -arch=sm_90a"',
    ),
    "emulate.shared": Entry(
        "The text takes more shared memory than its launch gives it, or declares more than the 48 KB of which a launch "
        "need not know: someone edited it.",
        "# s.with_source(text).check(level='emulate') with a larger TIR_SHARED(…, bytes)",
        "# the tiles in the schedule",
    ),
    "interp.not-lowered": Entry(
        "The interpreter met something that has no meaning in a lowered kernel: a pass is missing.",
        "# tensorir.lower.pipeline.PASSES was edited",
        "# restore the list",
    ),
    "memory.out-of-bounds": Entry(
        "An access lies outside its array.",
        "# a verdict of s.check() for a program whose guards were removed",
        "# s.blame() names the step",
    ),
    "memory.uninitialised": Entry(
        "An element is read that was never written.",
        "# a verdict of s.check() for a program that lost an initialisation",
        "# s.blame() names the step",
    ),
    "memory.unwritten": Entry(
        "An element of the result is never written.",
        "# a verdict of s.check() for a program with a loop that ends too early",
        "# s.blame() names the step",
    ),
    "check.not-run": Entry(
        "The process for text that has not passed before could not answer, which says nothing about the text: the "
        "disk is full, say. The message has the reason.",
        "# s.with_source(text).check(level='device') with no room for temporary files",
        "# room in TMPDIR",
    ),
    "check.definition": Entry(
        "The schedule computes what its own tensors declare, and these are not what it was made for (s.definition): an "
        "element of the result is another one in exact arithmetic.",
        "# a verdict of s.check() for a template's schedule whose declaration was exchanged",
        "# s.outputs and s.definition show both; work.schedule() refuses such templates",
    ),
    "check.edited-text": Entry(
        "Edited text has no loop tree, so only running it can check it.",
        's.with_source(s.source()).check(level="fast")',
        's.with_source(s.source()).check(level="device")',
    ),
    "check.infinity-spreads": Entry(
        "An infinity in one part of an input reaches results that the declaration makes of finite elements alone: what "
        "lies beyond the end of a row, a group or an image is multiplied by 0, and 0 times infinity is no number.",
        "# s.with_source(text that adds 0 * x[7] to every element).check(level='emulate')",
        "# s.source() shows the text that leaves such elements out",
    ),
    "check.level": Entry(
        'Levels are "fast" (no device), "device" and "emulate".',
        's.check(level="thorough")',
        's.check(level="fast")',
    ),
    "check.not-equal": Entry(
        "On small shapes, in exact arithmetic, the schedule does not compute what the declaration says. "
        "s.blame() names the first step that breaks it.",
        "# a verdict of s.check() for a schedule whose lowering was changed",
        "# s.blame()",
    ),
    "check.unknown-axis": Entry(
        "shapes= maps axes of the declaration to extents.",
        's.check(shapes=[{"x": 3}])',
        's.check(shapes=[{"i": 3, "j": 2, "k": 5}])',
    ),
    "check.wrong-result": Entry(
        "The kernel ran and its result differs from the reference; the message shows where and by how much.",
        "# s.with_source(text with one index changed).check(level='device')",
        "# s.source() shows the text that is right",
    ),
    "race.global": Entry(
        "Two threads of one kernel use one element of global memory, one of them writing. Kernels in sequence may.",
        "# a verdict of s.check() for a program whose block index was dropped from an output",
        "# s.blame() names the step",
    ),
    "race.shared": Entry(
        "Two threads of a block use one element of shared memory, one of them writing, with no barrier between them.",
        "# a verdict of s.check() for a program that lost a barrier",
        "# s.blame() names the step",
    ),
}
