"""Error codes of devices, launches, caches, tuning and logs."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

_CUDA = 'pip install "tensorir[cuda]"'

RUN: dict[str, Entry] = {
    # --- devices
    "device.broken": Entry(
        "The device cannot be used in the worker process that measures; the message holds its words.",
        "# a driver that refuses a second process",
        "$ tensorir doctor",
    ),
    "device.forked": Entry(
        "A device opened by one process was used in a fork of it. Drivers do not survive a fork.",
        "# tir.Schedule(C).build() before os.fork(), called after it",
        "# open the device in the child, or start it with the spawn method",
    ),
    "device.no-cuda-driver": Entry(
        "There is no NVIDIA driver, or it finds no GPU. Compiling, show --arch and register counts need neither.",
        "# s.build() for cuda on a machine without a GPU",
        '# s.source("cuda"), or target="opencl"; tensorir doctor says what is usable',
    ),
    "device.no-cupy": Entry(
        "CUDA runs through CuPy, which is not installed.",
        "# the base install, asked for CUDA",
        f"# {_CUDA}",
    ),
    "device.no-nvdisasm": Entry(
        "The disassembler for show --sass is not installed, or did not run.",
        "# the base install, asked for SASS",
        f"# {_CUDA}",
    ),
    "device.no-nvrtc": Entry(
        "NVIDIA's run-time compiler cannot be loaded.",
        "# CuPy without the libraries that it loads",
        f"# {_CUDA}",
    ),
    "device.no-compiler": Entry(
        "The C device needs a C compiler: the one that TENSORIR_CC names, else gcc or clang. None is here, or "
        "what it builds cannot be loaded.",
        "# a machine without a C compiler",
        "# apt-get install gcc, or TENSORIR_CC=/path/to/a/compiler",
    ),
    "device.no-opencl": Entry(
        "pyopencl cannot be imported, or finds no platform. On Linux x86-64 PoCL's wheel brings a CPU device.",
        "# a machine with no OpenCL runtime",
        '# pip install pyopencl "pocl-binary-distribution>=3.0", or the package of your system (pocl-opencl-icd)',
    ),
    "device.not-found": Entry(
        "No device has that name, or it could not be opened; tensorir devices lists the names.",
        's.build("opencl:7:0")',
        "s.build()",
    ),
    # --- launches
    "launch.aliasing": Entry(
        "An output overlaps an input or another output. Kernels are compiled on the promise that they do not.",
        'S = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="S")\ntir.Schedule(S).build()(a, out=a)',
        'S = tir.compute((100, 64), lambda i, j: A[i, j] + 1, name="S")\n'
        "tir.Schedule(S).build()(a, out=np.empty_like(a))",
    ),
    "launch.alignment": Entry(
        "A device array starts at an address that the kernel's vector accesses cannot use.",
        "# a pyopencl array that is a view from element 1 on",
        "# a copy of it",
    ),
    "launch.copied-alignment": Entry(
        "Told, not refused, by f.copies, f.bind(...).copies and f.time(...): a device that works on host arrays in "
        "place needs their address to be a multiple of what the kernel loads at once. NumPy's are multiples of 16.",
        "# f(np.ones((100, 64), 'float32')), and then f.copies",
        "# x = tir.empty((100, 64)); x[...] = 1; f(x)",
    ),
    "launch.copied-strides": Entry(
        "Warned of once for each program, and told by f.copies: a host array that is not C-contiguous is copied ahead "
        "of the kernels, again for each call.",
        "# f(x.T) in a loop",
        "# y = np.ascontiguousarray(x.T), and f(y) in the loop",
    ),
    "launch.count": Entry(
        "A kernel takes one array for each input, in order of declaration.",
        "s.build()(a)",
        "s.build()(a, b)",
    ),
    "launch.keyword": Entry(
        "An argument was given by a name that no input has, or that an earlier argument stands for. Inputs have the "
        "names of their placeholders.",
        "s.build()(a, A=b)",
        "s.build()(a, B=b)",
    ),
    "launch.device": Entry(
        "An array lives on another device or in another context than the kernel, or arrays of two kinds are mixed.",
        "# a pyopencl array and a NumPy array in one call",
        "# arrays of one kind",
    ),
    "launch.dtype": Entry(
        "An array has another dtype than was declared. Nothing is converted in silence.",
        's.build()(a.astype("float64"), b)',
        "s.build()(a, b)",
    ),
    "launch.failed": Entry(
        "The runtime refused or aborted the launch; the message holds its words.",
        "# the driver reset the device",
        "# tensorir doctor",
    ),
    "launch.gradient": Entry(
        "A tensor that requires a gradient was given to a plain call, which records nothing, or to an operator that "
        "has no backward for it: the gradient would be lost. backward= gives an operator one when it is registered; "
        "detach() and no_grad() say that none is wanted.",
        '# f(x, w.requires_grad_()), or op = f.torch("mine::conv"); op(x, w.requires_grad_())',
        '# f(x, w.detach()), or op = f.torch("mine::conv", backward={"x": dx, "w": dw})',
    ),
    "launch.index-range": Entry(
        "An index tensor holds a value outside the tensor that it indexes. Values are checked at each launch.",
        'n = tir.placeholder((4,), "int32", name="n")\n'
        'G = tir.compute((4,), lambda i: B[n[i], 0], name="G")\n'
        'tir.Schedule(G).build()(b, np.array([0, 1, 2, 64], "int32"))',
        'n = tir.placeholder((4,), "int32", name="n")\n'
        'G = tir.compute((4,), lambda i: B[n[i], 0], name="G")\n'
        'tir.Schedule(G).build()(b, np.array([0, 1, 2, 63], "int32"))',
    ),
    "launch.input-written": Entry(
        "A guarded run found that the kernel wrote to an input.",
        "# edited text that stores to A",
        "# s.source() shows the text that is right",
    ),
    "launch.memory": Entry(
        "The device cannot give as much memory as an array needs.",
        "# arrays larger than the device's memory",
        "# smaller arrays, or another device",
    ),
    "launch.crashed": Entry(
        "Text that has not passed before (edited, or with instructions that you registered) runs in a process of its "
        "own first, and that process died: the message has its signal. What stores through a pointer to nowhere does "
        "so, or what takes more memory than there is. Nothing of it ran in your process.",
        "# s.with_source(text that stores far behind its array).build()",
        "# s.with_source(text whose stores stay in its arrays).build()",
    ),
    "launch.time-limit": Entry(
        "Text that has not passed before ran in a process of its own and had not ended within the limit: usually a "
        "loop that does not end. For text that takes long there is limit_s=, in seconds.",
        "# s.with_source(text with for (;;)).build()",
        "s.with_source(s.source()).build(limit_s=120)",
    ),
    "launch.out-of-bounds": Entry(
        "A guarded run found that the kernel wrote before the start or behind the end of an array.",
        "# edited text with an index too far",
        "# s.source() shows the text that is right",
    ),
    "launch.prepack": Entry(
        "prepack fixes inputs that only kernels which run once read. The message lists those that can be fixed; "
        "a schedule makes some with run='once'.",
        "s.build().prepack(B=b)",
        's.stage_in("B", at="root", scope="global", run="once")\ng = s.build().prepack(B=b)\ng(a)',
    ),
    "launch.read-only": Entry(
        "The array given for a result cannot be written.",
        'c = np.empty((100, 48), "float32")\nc.flags.writeable = False\ns.build()(a, b, out=c)',
        'c = np.empty((100, 48), "float32")\ns.build()(a, b, out=c)',
    ),
    "launch.second-derivative": Entry(
        "The gradient of an operator's gradient was asked for (create_graph=True). Kernels for it cannot be given.",
        "# torch.autograd.grad(op(x, w).sum(), x, create_graph=True)",
        "# torch.autograd.grad(op(x, w).sum(), x)",
    ),
    "launch.shape": Entry(
        "An array has another shape than was declared.",
        "s.build()(a.T, b)",
        "s.build()(a, b)",
    ),
    "launch.strides": Entry(
        "A result or a device array must be contiguous in C order; views with other strides are not copied in silence.",
        's.build()(a, b, out=np.empty((48, 100), "float32").T)',
        's.build()(a, b, out=np.empty((100, 48), "float32"))',
    ),
    "launch.tensor-map": Entry(
        "A kernel copies tiles of an array by the tensor memory accelerator, which takes no such array or tile: "
        "addresses, strides and rows of a tile are multiples of 16 bytes; a tile is among 1 to 256 elements in a "
        "dimension, of which it has each, or in other dimensions than the last one every so many-th, up to the eighth.",
        "# a cupy array that is a view from element 1 on",
        "# a copy of it",
    ),
    "launch.type": Entry(
        "An argument is no array that the device can take: numpy, pyopencl, cupy or DLPack.",
        "s.build()([[1.0, 2.0]], b)",
        "s.build()(a, b)",
    ),
    "launch.unwritten": Entry(
        "A guarded run found elements of the result that the kernel never wrote.",
        "# edited text with a loop that ends too early",
        "# s.source() shows the text that is right",
    ),
    # --- sequences
    "sequence.device": Entry(
        "All launches of a sequence run on one device, on one queue.",
        "# tir.sequence([f.bind(x), g.bind(y)]) where g was built for another device",
        "# build both for the same device",
    ),
    "sequence.launches": Entry(
        "A sequence is a list of bound launches, what f.bind(...) returns, or of sequences.",
        "tir.sequence([s.build()])",
        "tir.sequence([s.build().bind(a, b)])",
    ),
    "sequence.overlap": Entry(
        "Two launches work on arrays that share some bytes without being the same array, one of them is written, and "
        "on this device a copy would not see it.",
        "# g.bind(y[::2]) behind f.bind(x, out=y)",
        "# whole arrays, or a kernel that reads every other row itself",
    ),
    # --- caches
    "cache.foreign-directory": Entry(
        "The cache holds native code, so its directory must belong to you and nobody else may write it.",
        "# TENSORIR_CACHE_DIR names a directory that others may write",
        "$ chmod 700 the directory, or set TENSORIR_CACHE_DIR to one of your own",
    ),
    "cache.damaged": Entry(
        "Files in the folder where PoCL keeps what it compiles are damaged. PoCL takes them for whole: it gives "
        "programs without kernels, or ends the process that loads one; tensorir doctor looks for them.",
        "# f = s.build() with a cache of PoCL's that was cut short, by a full disk perhaps",
        "$ rm -r ~/.cache/pocl/kcache",
    ),
    "pack.damaged": Entry(
        "A packed log is not as tensorir cache export wrote it: cut, changed, or made by somebody else. Nothing "
        "of it is used.",
        "$ tensorir cache import cut-short.pack",
        "# copy the file again and compare its size",
    ),
    "pack.newer": Entry(
        "A packed log was written by a later version of tensorir.",
        "$ tensorir cache import from-the-future.pack",
        "$ pip install --upgrade tensorir",
    ),
    "pack.not-tuned": Entry(
        "The log holds no record to pack, of any workload or of the named one.",
        "$ tensorir cache export my.pack --log empty",
        "$ tensorir tune matmul 64x64x64 && tensorir cache export my.pack",
    ),
    "pack.too-large": Entry(
        "A packed log has at most 4096 members, 64 MiB each and 1 GiB in all, so that a hostile one can do no harm.",
        "$ tensorir cache export all.pack",
        "$ tensorir log freeze -o chosen.json && tensorir cache export chosen.pack --log chosen.json",
    ),
    "pack.unreadable": Entry(
        "A packed log does not exist or cannot be read.",
        "$ tensorir cache import nowhere.pack",
        "$ tensorir cache import here.pack",
    ),
    "pack.unwritable": Entry(
        "A packed log, or the cache directory that it is unpacked into, cannot be written.",
        "$ tensorir cache export /proc/my.pack",
        "$ tensorir cache export my.pack",
    ),
    # --- tuning
    "load.frozen-stale": Entry(
        "A frozen file pins a kernel that this version does not make any more, or for another driver or definition; "
        "the message says what changed.",
        "# w.load(log='frozen.json') after an update of tensorir or of the driver",
        "$ tensorir tune matmul 64x64x64 && tensorir log freeze -o frozen.json",
    ),
    "load.frozen-wrong": Entry(
        "The kernel that a frozen file pins cannot be compiled on this device now, or its result is wrong.",
        "# w.load(log='frozen.json') on a device whose driver is broken",
        "$ tensorir repro RECORD --log frozen.json",
    ),
    "load.not-tuned": Entry(
        "The log holds no usable record of this workload on this device. load never tunes; the message "
        "says what to run, "
        "and which shape tuned so far is nearest.",
        "tir.ops.matmul(m=77, n=5, k=3).load(log='no-such-folder')",
        "$ tensorir tune matmul 77x5x3",
    ),
    # --- sets of shapes
    "shapes.nothing": Entry(
        "No shape of the set has a valid configuration, so there is no kernel to choose.",
        "# r.choose(n=8) after a run in which every trial failed",
        "# look at r.outcomes[0].reasons, and mend the template",
    ),
    "shapes.parameters": Entry(
        "What tells the shapes of a set apart must be numbers, words or switches, of one sort for each name: a table"
        " and a decision tree ask about them. Other words and switches than those that were tuned are not served.",
        "one = tir.ops.matmul(m=8, n=8, k=8)\n"
        'two = tir.Workload("matmul", C, {"t": (lambda s, c: s, tir.Space(x=[1]))}, parameters={"m": (1, 2)})\n'
        "tir.tune_shapes([one, two])",
        "# r.choose(m=8, n=8, k=8, batch=1) with the parameters that the tuned shapes differ in",
    ),
    "shapes.set": Entry(
        "Shapes that are tuned together are of one operator, each of them once.",
        "tir.tune_shapes([tir.ops.matmul(m=8, n=8, k=8), tir.ops.conv2d()])",
        "# tir.tune_shapes([tir.ops.matmul(m=m, n=8, k=8) for m in (8, 16)])",
    ),
    "shapes.unwritable": Entry(
        "The folder for the kernels and the choice among them cannot be made or written.",
        '# r.save("/proc/out")',
        '# r.save("out")',
    ),
    # --- tuning
    "tune.executor": Entry(
        "Trials are handed to a concurrent.futures.Executor, or anything with its submit method.",
        "tir.ops.matmul(m=64, n=64, k=64).tune(executor=4)",
        "# tune(executor=client) with a Dask client; None for a local process",
    ),
    "tune.origin": Entry(
        "An executor's processes make the workload again, from an operator's name and parameters or from a function of "
        "a file. One that was put together in a notebook has neither.",
        "from concurrent.futures import ThreadPoolExecutor\nx = tir.placeholder((4,))\n"
        "y = tir.compute((4,), lambda i: x[i] * 2)\n"
        "w = tir.Workload('own', y, {'plain': (lambda s, c: None, tir.Space())})\n"
        "w.tune(executor=ThreadPoolExecutor(1))",
        "# from tensorir.api.origin import from_file\n"
        "# from_file('own.py', 'make', {}).tune(executor=client), where make() returns the workload",
    ),
    "tune.devices": Entry(
        "Several devices are a list of different names, and all of one kind: times of different devices, drivers or "
        "compilers cannot be compared. With an executor there is at most one name, which each of its workers opens.",
        "tir.ops.matmul(m=64, n=64, k=64).tune(device=['cuda:0', 'cuda:0'])",
        "# tune(device=['cuda:0', 'cuda:1'])",
    ),
    "tune.workers-lost": Entry(
        "Nothing can be measured any more: the executor was shut down or broke, or none of its workers is left, "
        "answers, or has the device. It is in outcome.error when trials had been measured before.",
        "# a process of a ProcessPoolExecutor was killed, which ends the whole pool",
        "# the same call with a new executor goes on from the log; a Dask cluster goes on by itself",
    ),
    "tune.option": Entry(
        "tune has no such option.",
        "tir.ops.matmul(m=64, n=64, k=64).tune(trails=9)",
        "# tune(trials=9)",
    ),
    "tune.time": Entry(
        "A time is a number with ms, s, m or h.",
        'tir.ops.matmul(m=64, n=64, k=64).tune(budget="soon")',
        '# tune(budget="90s")',
    ),
    "tune.skopt-missing": Entry(
        "Bayesian search takes its surrogate models from scikit-optimize, which cannot be imported.",
        '# strategy "bayes" by name, from a bare checkout',
        "# pip install scikit-optimize; without a name the search falls back to hill climbing, with one warning",
    ),
    "tune.unknown-strategy": Entry(
        "There is no search strategy of that name.",
        "# strategy='annealing'",
        "# bayes, climb or random",
    ),
    "worker.forked": Entry(
        "The measuring worker belongs to the process that started it.",
        "# a worker used after os.fork()",
        "# one worker for each process",
    ),
    "worker.no-python": Entry(
        "Python does not know its own executable, so no worker process can be started.",
        "# tensorir embedded in another program, with an empty sys.executable",
        "# set sys.executable to a Python that has tensorir",
    ),
    "worker.start": Entry(
        "The measuring worker ended, or was not ready in time, while starting; the message holds its last words.",
        "# an import in the user's file that fails or hangs",
        "$ python FILE.py",
    ),
    # --- exported folders
    "export.arch": Entry(
        "Architectures are those of CUDA, sm_80 and so on, and a destination that takes CUDA is among those asked for.",
        's.export("out", to=["source"], arch=["ampere"])',
        '# s of target "cuda": s.export("out", to=["source"], arch=["sm_80", "sm_90a"])',
    ),
    "export.destination": Entry(
        "A kernel is exported to one or more of: source, pyopencl, cupy, c, torch, jax, onnxruntime, tvm_ffi.",
        's.build().export("out", to=["tensorflow"])',
        's.build().export("out", to=["pyopencl"])',
    ),
    "export.language": Entry(
        "The destination runs the other language than the kernel's.",
        's.build().export("out", to=["cupy"])',
        's.build().export("out", to=["source", "pyopencl"])',
    ),
    "export.library": Entry(
        "The C compiler that was found refuses the text of the folder's shared library: gcc 12 and clang 14 take it.",
        "# CC=gcc-9 tensorir export matmul 64x64x64 --to onnxruntime -o out",
        "# CC=clang tensorir export matmul 64x64x64 --to onnxruntime -o out",
    ),
    "export.backward": Entry(
        "A kernel for a gradient takes inputs and outputs of the exported one by their names and d_<output>, and gives "
        "one array like the input; jax and torch use it.",
        's.export("out", to=["jax"], backward={"nothing": s})',
        's.export("out", to=["jax"])',
    ),
    "export.batched": Entry(
        "A kernel for a batch takes the inputs of the exported one by their names, some with the number of items in "
        "front of their shape, and gives its outputs with it; jax uses it.",
        's.export("out", to=["jax"], batched=s.definition)',
        's.export("out", to=["jax"])',
    ),
    "export.name": Entry(
        "What frameworks call the kernel is NS::NAME: two identifiers, which C, C++ and Python take.",
        's.build().export("out", to=["source"], name="my conv")',
        's.build().export("out", to=["source"], name="mine::conv")',
    ),
    "export.no-reference": Entry(
        "An exported folder tests itself against expected results, and there are no declarations to compute them from.",
        "# tensorir.export.folder.export(source, path, to) without outputs=",
        's.build().export("out", to=["source"])',
    ),
    "export.not-empty": Entry(
        "The folder holds something that is not an earlier export; nothing of it is overwritten.",
        's.build().export(".." , to=["source"])',
        's.build().export("out", to=["source"])',
    ),
    "export.not-tuned": Entry(
        "The log holds no usable record of this workload on this device, or for a set, on no device one of each of its "
        "shapes, so there is no kernel to export.",
        "$ tensorir export matmul 77x5x3 -o out",
        "$ tensorir export matmul 77x5x3 -o out --untuned",
    ),
    "export.portable": Entry(
        "An architecture that was asked for cannot run this kernel, and there is no other kernel for it: the schedule "
        "uses what later architectures have, and no workload's template can stand in.",
        "# s of wgmma: s.export('out', to=['cupy'], arch=['sm_80', 'sm_90a'])",
        "# arch=['sm_90a'], or the schedule of a workload, whose default for sm_80 is shipped beside it",
    ),
    "export.set": Entry(
        "The destination takes the kernel of one shape; a set of shapes with its choice goes to others.",
        "# tensorir export matmul --shapes FILE --to c -o out",
        "# tensorir export matmul 64x64x64 --to c -o out, for each shape",
    ),
    "export.unwritable": Entry(
        "The folder cannot be written.",
        "# a folder on a full or read-only disk",
        "# another folder",
    ),
    # --- logs
    "log.forked": Entry(
        "A tuning log belongs to the process that opened it: two writers could interleave.",
        "# a log used after os.fork()",
        "# open the log in the child: it gets a file of its own",
    ),
    "log.frozen-damaged": Entry(
        "A frozen file is not as tensorir wrote it: cut, edited or reformatted. It is refused as a whole.",
        "# w.load(log='frozen.json') after somebody changed a configuration in it",
        "$ tensorir log freeze -o frozen.json",
    ),
    "log.frozen-newer": Entry(
        "A frozen file was written by a later version of tensorir.",
        "# w.load(log='frozen.json') with an older tensorir than the one that froze it",
        "# that version, or a file frozen by this one",
    ),
    "log.full": Entry(
        "There is no room for the tuning log. Finished trials are safe.",
        "# a full disk",
        "# free some space and run the same command: it resumes",
    ),
    "log.unreadable": Entry(
        "A tuning log does not exist or cannot be read.",
        "$ tensorir log best nowhere/",
        "$ tensorir log best tuning_logs/",
    ),
    "log.unwritable": Entry(
        "The tuning log cannot be written.",
        "$ tensorir tune matmul 64x64x64 --log /proc",
        "$ tensorir tune matmul 64x64x64 --log tuning_logs",
    ),
    # --- operators of PyTorch
    "torch.backward": Entry(
        "A backward does not fit the operator. It is a kernel for each input of a float type; each takes inputs and "
        "outputs of the operator by their names, and the gradient that comes in as d_<output>, and gives one result, "
        "of its input's shape and type.",
        '# f.torch("mine::mm", backward={"a": db})',
        '# f.torch("mine::mm", backward={"a": da, "b": db})',
    ),
    "torch.kernels": Entry(
        "Kernels of one operator have the same arguments but for their shapes, and no two the same shapes.",
        "# two kernels for the same shapes, with other strides",
        "# an operator for each",
    ),
    "torch.missing": Entry(
        "PyTorch is not installed.",
        "# the base install: f.torch(…)",
        '# pip install "tensorir[torch]"',
    ),
    "torch.name": Entry(
        "An operator of PyTorch is named namespace::name, both of letters, digits and underscores, in a namespace that "
        "is not PyTorch's own; its inputs are named so as well.",
        'tir.Schedule(C).build().torch("conv")',
        '# tir.Schedule(C).build().torch("mine::conv")',
    ),
    "torch.taken": Entry(
        "Something else in this process has registered an operator of that name. (What f.torch registered, and what an "
        "exported folder did, each replaces its own.)",
        '# f.torch("torchvision::nms")',
        '# f.torch("mine::nms")',
    ),
}
