"""Error codes of declarations: placeholder, compute, reductions, targets, spaces, workloads."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

_XF = 'X = tir.placeholder((1, 4, 8, 8), name="X")\nF = tir.placeholder((6, 4, 3, 3), name="F")\n'

DECLARE: dict[str, Entry] = {
    "attribute.called": Entry(
        "A folder of the package was called. What it does is asked of schedules, workloads and executables.",
        "tir.lower(s)",
        "s.source()",
    ),
    "attribute.unknown": Entry(
        "There is no attribute of that name. Names that other tools use are answered with the ones here.",
        's.cache_read(A, "shared")',
        's.stage_in(A, at="C.i", scope="shared")',
    ),
    "argument.call": Entry(
        "A function was called with arguments that it does not take, or without one that it needs.",
        's.split("C.i", factor=4)',
        's.split("C.i", [None, 4])',
    ),
    "conv2d.channels": Entry(
        "The filters have another number of channels for each group than the image.",
        _XF + "tir.nn.conv2d(X, F, groups=2)",
        _XF + "tir.nn.conv2d(X, F)",
    ),
    "conv2d.dilation": Entry(
        "The distance of the taps is an int from 1 up.",
        _XF + "tir.nn.conv2d(X, F, dilation=0)",
        _XF + "tir.nn.conv2d(X, F, dilation=2)",
    ),
    "conv2d.extent": Entry(
        "The image is smaller than the filter: there is no output.",
        _XF + "tir.nn.conv2d(X, F, dilation=4)",
        _XF + "tir.nn.conv2d(X, F, dilation=4, pad=4)",
    ),
    "conv2d.groups": Entry(
        "The number of groups divides the channels and the filters.",
        _XF + "tir.nn.conv2d(X, F, groups=3)",
        'X = tir.placeholder((1, 4, 8, 8), name="X")\nF = tir.placeholder((6, 2, 3, 3), name="F")\n'
        "tir.nn.conv2d(X, F, groups=2)",
    ),
    "conv2d.layout": Entry(
        "A convolution is NCHW (with filters KCRS) or NHWC (with filters KRSC).",
        _XF + 'tir.nn.conv2d(X, F, layout="CHWN")',
        _XF + 'tir.nn.conv2d(X, F, layout="NCHW")',
    ),
    "conv2d.pad": Entry(
        "The padding is an int from 0 up, the same on all sides.",
        _XF + "tir.nn.conv2d(X, F, pad=-1)",
        _XF + "tir.nn.conv2d(X, F, pad=1)",
    ),
    "conv2d.precision": Entry(
        "A precision names how products of float32 are made on tensor cores; other types have just one.",
        'tir.ops.conv2d(c=64, k=64, dtype="float16", precision="tf32")',
        'tir.ops.conv2d(c=64, k=64, precision="3xtf32")',
    ),
    "conv2d.rank": Entry(
        "An image is n, c, h, w and a set of filters is k, c, r, s: four dimensions each.",
        "tir.nn.conv2d(A, B)",
        _XF + "tir.nn.conv2d(X, F)",
    ),
    "conv2d.stride": Entry(
        "The step of the window is an int from 1 up.",
        _XF + "tir.nn.conv2d(X, F, stride=0)",
        _XF + "tir.nn.conv2d(X, F, stride=2)",
    ),
    "declare.arity": Entry(
        "A mathematical function was given too many or too few arguments.",
        "tir.compute((64,), lambda i: tir.exp(A[0, i], 2.0))",
        "tir.compute((64,), lambda i: tir.pow(A[0, i], 2.0))",
    ),
    "declare.assigned": Entry(
        "An element of a tensor was assigned to. A tensor is declared once, all of it; another one may read it.",
        "A[0, 0] = 1",
        "tir.compute((100, 64), lambda i, j: tir.where(tir.equal(i, 0), 1, A[i, j]))",
    ),
    "declare.broadcast": Entry(
        "Whole tensors whose shapes NumPy cannot broadcast together: from the last one on, extents are equal or 1.",
        "A + B",
        "A + B[:, 0]",
    ),
    "declare.called": Entry(
        "A tensor was called like a function, as TVM and Halide do. It is read with brackets.",
        "tir.compute((100, 64), lambda i, j: A(i, j))",
        "tir.compute((100, 64), lambda i, j: A[i, j])",
    ),
    "declare.reshape": Entry(
        "The new shape has not as many elements as the tensor.",
        "A.reshape(99, -1)",
        "A.reshape(50, -1)",
    ),
    "declare.bitcast": Entry(
        "A bitcast takes the bits of a value as another type, which has as many of them. bool has none that mean "
        "anything.",
        'X = tir.placeholder((8,), "float32", name="X")\ntir.compute((8,), lambda i: tir.bitcast(X[i], "uint16"))',
        'X = tir.placeholder((8,), name="X")\ntir.compute((8,), lambda i: tir.bitcast(X[i], "uint32") >> 31)',
    ),
    "declare.bitwise": Entry(
        "& | ^ ~ are bitwise on integers and logical on conditions; << >> and mulhi take integers. A condition with an "
        "integer is a mistake more often than not, and floats have no bits until they are asked for; uint64 with a "
        "signed type is a float in NumPy.",
        'X = tir.placeholder((8,), "int32", name="X")\ntir.compute((8,), lambda i: tir.where((X[i] > 0) & X[i], 1, 0))',
        'X = tir.placeholder((8,), "int32", name="X")\n'
        "tir.compute((8,), lambda i: tir.where((X[i] > 0) & (X[i] & 1 > 0), 1, 0))",
    ),
    "declare.captured-array": Entry(
        "A lambda uses a NumPy (or other) array directly. Lambdas run once, with symbolic indices, so an "
        "array's values "
        "would be baked in by accident. Say what you mean: an input of the kernel, or values known at "
        "compile time.",
        'w = np.ones(48, "float32")\ntir.compute((100, 48), lambda i, j: C[i, j] * w)',
        'w = tir.constant(np.ones(48, "float32"), name="w")\ntir.compute((100, 48), lambda i, j: C[i, j] * w[j])',
    ),
    "declare.constant-range": Entry(
        "A plain integer takes the type of what it meets, and this one does not fit there: it would become another "
        "number. As in NumPy that is an error. Convert what it meets, or the constant, to a wider type.",
        'X = tir.placeholder((8,), "int8", name="X")\ntir.compute((8,), lambda i: X[i] + 300)',
        'X = tir.placeholder((8,), "int8", name="X")\ntir.compute((8,), lambda i: tir.cast(X[i], "int32") + 300)',
    ),
    "declare.dtype": Entry(
        "The dtype is not one that kernels know: float64/32/16, bfloat16, float8_e4m3, float8_e5m2, "
        "int8/16/32/64, uint8/16/32/64, bool. It is said as numpy.dtype takes it: a name, a type, ml_dtypes.bfloat16.",
        'tir.placeholder((8, 8), "complex64")',
        'tir.placeholder((8, 8), "float32")',
    ),
    "declare.index-type": Entry(
        "A tensor is indexed with a float or a bool. Indices are integers: axes, their sums and "
        "products, or integer tensors.",
        "tir.compute((64,), lambda i: B[tir.sqrt(i), 0])",
        "tir.compute((64,), lambda i: B[i // 2, 0])",
    ),
    "declare.iterated": Entry(
        "Python asked for the elements of a symbolic value one by one: by for, in, unpacking, list() or Python's "
        "own sum and max. A tensor is indexed with axes, and reduced with tir.sum and tir.max over a reduce axis.",
        "tir.compute((100,), lambda i: sum(A[i, 0]))",
        "tir.compute((100,), lambda i: tir.sum(A[i, k], axis=k))",
    ),
    "declare.lambda-arity": Entry(
        "The lambda (or axes=) must name one axis for each dimension of the shape; parameters with defaults do not "
        "count.",
        "tir.compute((100, 48), lambda i: C[i, 0])",
        "tir.compute((100, 48), lambda i, j: C[i, j])",
    ),
    "declare.lambda-failed": Entry(
        "The lambda raised while it ran with symbolic indices. The message is Python's, the line is the one that "
        "raised; the cause is usually something that a symbol cannot do, such as being looked up in a dict.",
        "tir.compute((4,), lambda i: {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}[i])",
        "v = tir.constant([1.0, 2.0, 3.0, 4.0])\ntir.compute((4,), lambda i: v[i])",
    ),
    "declare.lambda-none": Entry(
        "The lambda returned None: it must return the expression of one element. A def needs a return.",
        "def element(i, j):\n    C[i, j] + 1\n\n\ntir.compute((100, 48), element)",
        "def element(i, j):\n    return C[i, j] + 1\n\n\ntir.compute((100, 48), element)",
    ),
    "declare.loose-axis": Entry(
        "A reduce axis is used outside a reduction over it, so it has no value there.",
        "tir.compute((100,), lambda i: A[i, k])",
        "tir.compute((100,), lambda i: tir.sum(A[i, k], axis=k))",
    ),
    "declare.mixed-reductions": Entry(
        "A compute with several results runs one loop nest, so all of its results reduce over the same axes.",
        "tir.compute((64,), lambda i: (tir.sum(B[i, 0] * A[0, k], axis=k), B[i, 1]))",
        "tir.compute((64,), lambda i: tir.sum(B[i, 0] * A[0, k], axis=k))\ntir.compute((64,), lambda i: B[i, 1])",
    ),
    "declare.name": Entry(
        "Names appear in the loop tree and in the emitted code: a non-empty string is needed.",
        'tir.placeholder((8,), name="")',
        'tir.placeholder((8,), name="x")',
    ),
    "declare.not-callable": Entry(
        "compute takes a shape and a function of the axes.",
        "tir.compute((100, 48), C[0, 0])",
        "tir.compute((100, 48), lambda i, j: C[0, 0])",
    ),
    "declare.out-of-range": Entry(
        "An access cannot be proved to stay inside the tensor; the message shows axes for which it does not. "
        "Restrict the shape, pad the read with get, or guard it with tir.where: the side not taken is "
        "never read.",
        "tir.compute((100,), lambda i: A[i + 1, 0])",
        "tir.compute((99,), lambda i: A[i + 1, 0])\ntir.compute((100,), lambda i: A.get(i + 1, 0, fill=0))",
    ),
    "declare.function": Entry(
        "A function of NumPy's or torch's, or an argument of it, that declarations do not have. Those of one element "
        "mean what they say: np.exp, np.maximum, np.where, np.clip …; reductions run over reduce axes.",
        "tir.compute((100,), lambda i: np.cumsum(A[i, 0]))",
        "tir.compute((100,), lambda i: np.exp(A[i, 0]))",
    ),
    "declare.indexed": Entry(
        "One element was indexed. All indices of a tensor stand in one pair of brackets.",
        "tir.compute((100,), lambda i: A[i, 0][0])",
        "tir.compute((100,), lambda i: A[i, 0])",
    ),
    "declare.number": Entry(
        "Python asked a symbolic value for its number: by int(), float(), range(), a function of math, or as the index "
        "of a list. It has none while the computation is being declared. tensorir's functions have the names of "
        "math's, tir.cast converts, and a tensor of constants takes a symbolic index.",
        "import math\ntir.compute((100,), lambda i: math.exp(A[i, 0]))",
        "tir.compute((100,), lambda i: tir.exp(A[i, 0]))",
    ),
    "declare.power": Entry(
        "A power of an integer is the product of a constant number of factors. As in NumPy there is none with a "
        "negative exponent.",
        "tir.compute((100,), lambda i: i ** -1)",
        "tir.compute((100,), lambda i: i ** -1.0)",
    ),
    "declare.whole": Entry(
        "A whole tensor stands where one of its elements is meant: in a lambda, tensors are read with indices.",
        "tir.compute((100, 64), lambda i, j: A * 2)",
        "tir.compute((100, 64), lambda i, j: A[i, j] * 2)",
    ),
    "declare.gather-index": Entry(
        "An index is computed from the elements of another tensor, so its range is known neither here nor at launch, "
        "where only the elements of index inputs themselves are checked. Clamp it, or pass the finished index.",
        "# B[at[i] + 1]",
        "# B[tir.minimum(tir.maximum(at[i] + 1, 0), rows - 1)]",
    ),
    "declare.output": Entry(
        "A schedule is made of at least one computed tensor, each given once; there is nothing to schedule about an "
        "input.",
        "tir.Schedule(A)",
        "tir.Schedule(C)",
    ),
    "declare.rank": Entry(
        "A tensor is read with one index for each of its dimensions.",
        "tir.compute((100,), lambda i: A[i])",
        "tir.compute((100,), lambda i: A[i, 0])",
    ),
    "declare.shift": Entry(
        "A constant number of bits is one that the type has: 0 to 31 of int32, and of an index. Where it is computed "
        "any number is legal, and means what it means in NumPy: by none of the type's, 0 is left, or -1 of a negative "
        "number that is shifted to the right.",
        'X = tir.placeholder((8,), "int32", name="X")\ntir.compute((8,), lambda i: X[i] << 32)',
        'X = tir.placeholder((8,), "int32", name="X")\ntir.compute((8,), lambda i: tir.cast(X[i], "int64") << 32)',
    ),
    "declare.shape": Entry(
        "Shapes are ints from 0 to 2**62. A float, a negative number or a bool is refused here rather than rounded.",
        "tir.placeholder((8, 2.5))",
        "tir.placeholder((8, 2))",
    ),
    "declare.slice": Entry(
        "A tensor is read element by element; a slice would stand for a whole row.",
        "tir.compute((100,), lambda i: A[i, :])",
        "tir.compute((100, 64), lambda i, j: A[i, j])",
    ),
    "declare.symbolic-extent": Entry(
        "This place needs a number that is known now; an axis or a value read from memory is not.",
        "# a loop whose extent depends on data, where a primitive needs a constant",
        "# declare the extent as an int, or schedule another loop",
    ),
    "declare.too-deep": Entry(
        "One expression holds too many operations inside one another, such as a sum written by a Python loop of "
        "hundreds of steps. Reduce over an axis, or divide the work among several computes.",
        "def element(i):\n    e = A[i, 0]\n    for n in range(999):\n        e = e + n % 7 * A[i, 1]\n    return e\n\n"
        "\ntir.compute((100,), element)",
        "n = tir.reduce_axis(999)\ntir.compute((100,), lambda i: tir.sum(n % 7 * A[i, 1], axis=n))",
    ),
    "declare.truth-value": Entry(
        "Python asked a symbolic value whether it is true: by if, and, or, not, a chained comparison. "
        "Lambdas are run once, so conditions must be part of the expression. Outside of the lambda == compares "
        "identity, and gives a plain bool, which is no condition.",
        "tir.compute((100, 64), lambda i, j: A[i, j] if A[i, j] > 0 else 0)",
        "tir.compute((100, 64), lambda i, j: tir.where(A[i, j] > 0, A[i, j], 0))",
    ),
    "declare.value": Entry(
        "Something that is neither a number nor a symbolic expression was used in a computation.",
        'tir.compute((100, 64), lambda i, j: A[i, j] + "1")',
        "tir.compute((100, 64), lambda i, j: A[i, j] + 1)",
    ),
    "declare.zero-division": Entry(
        "An integer is divided by 0, or its remainder by 0 is taken, for some value of the axes. Divide only where the "
        "divisor is not 0: the side of tir.where that is not taken is never evaluated.",
        "tir.compute((9, 9), lambda i, j: i // j)",
        "tir.compute((9, 9), lambda i, j: tir.where(j > 0, i // j, 0))",
    ),
    "matmul.precision": Entry(
        "A precision names how products of float32 are made on tensor cores; other types have just one.",
        'tir.ops.matmul(m=64, n=64, k=64, dtype="float16", precision="tf32")',
        'tir.ops.matmul(m=64, n=64, k=64, precision="3xtf32")',
    ),
    "intrin.meaning": Entry(
        "An instruction is declared by one computation; one that reduces goes on from what its output holds.",
        "# meaning(D) of a compute that reduces",
        "# meaning(D, accumulate=True)",
    ),
    "intrin.text": Entry(
        "The text of an instruction mentions something that is none of its operands, or cannot be filled in.",
        "# emit={'opencl': '{c} = fma({a}, {bb}, {c});'}",
        "# emit={'opencl': '{c} = fma({a}, {b}, {c});'}",
    ),
    "grouped-matmul.align": Entry(
        "Groups begin at multiples of align rows, and tiles of tensor cores have 16, all of one group.",
        "tir.ops.grouped_matmul(m=64, n=64, k=64, groups=2, align=24)",
        "tir.ops.grouped_matmul(m=64, n=64, k=64, groups=2, align=32)",
    ),
    "grouped-matmul.room": Entry(
        "The rows of all groups, each of which begins at a multiple of align, are more than there is room for.",
        "from tensorir.ops.gemm_grouped import blocks_of; blocks_of([100, 1], align=64, m=128)",
        "from tensorir.ops.gemm_grouped import blocks_of; blocks_of([100, 1], align=64, m=192)",
    ),
    "grouped-matmul.precision": Entry(
        "A precision names how products of float32 are made on tensor cores; other types have just one.",
        'tir.ops.grouped_matmul(m=64, n=64, k=64, dtype="float16", precision="tf32")',
        'tir.ops.grouped_matmul(m=64, n=64, k=64, precision="3xtf32")',
    ),
    "grouped-matmul.shape": Entry(
        "The rows of a and the matrices of b do not multiply, or group has not one int32 for each align rows.",
        'tir.nn.grouped_matmul(A, tir.placeholder((3, 99, 9)), tir.placeholder((2,), "int32"), align=64)',
        'tir.nn.grouped_matmul(A, tir.placeholder((3, 64, 9)), tir.placeholder((2,), "int32"), align=64)',
    ),
    "matmul.shape": Entry(
        "The two matrices do not multiply: the inner extents differ, or the batches do.",
        "tir.nn.matmul(A, A)",
        "tir.nn.matmul(A, A, tb=True)",
    ),
    "nn.act": Entry(
        "The activation is not known.",
        'tir.nn.bias_act(C, None, "swish2", axis=1)',
        'tir.nn.bias_act(C, None, "relu", axis=1)',
    ),
    "ops.extent": Entry(
        "The extents of an operator are ints from 1 up.",
        "tir.ops.matmul(m=64, n=64, k=0)",
        "tir.ops.matmul(m=64, n=64, k=1)",
    ),
    "reduce.axis": Entry(
        "A reduction runs over reduce axes, each given once; argmin and argmax over exactly one.",
        "tir.compute((100,), lambda i: tir.sum(A[i, 0], axis=i))",
        "tir.compute((100,), lambda i: tir.sum(A[i, k], axis=k))",
    ),
    "reduce.bool": Entry(
        "Sums, products and extremes of truth values are ambiguous: convert them to numbers, or ask any or all.",
        "tir.compute((100,), lambda i: tir.sum(A[i, k] > 0, axis=k))",
        'tir.compute((100,), lambda i: tir.sum(tir.cast(A[i, k] > 0, "int32"), axis=k))',
    ),
    "reduce.identity": Entry(
        "The identity of a user's combiner is the constant that leaves every value unchanged; it cannot "
        "depend on data.",
        "xor = tir.combiner(lambda x, y: x + y - 2 * x * y, A[0, 0])\n"
        "tir.compute((100,), lambda i: xor(A[i, k], axis=k))",
        "xor = tir.combiner(lambda x, y: x + y - 2 * x * y, 0)\ntir.compute((100,), lambda i: xor(A[i, k], axis=k))",
    ),
    "reduce.name": Entry(
        "A combiner of your own has the name of a built-in reduction, which checks and schedules know to mean "
        "something else.",
        'tir.combiner(lambda x, y: x + y - 2 * x * y, 0, name="sum")',
        'tir.combiner(lambda x, y: x + y - 2 * x * y, 0, name="xor")',
    ),
    "reduce.result": Entry(
        "The function of a combiner gives one value for each value that is reduced: a tuple when they are given as a "
        "tuple, else a single one.",
        "both = tir.combiner(lambda x, y: x[0] + y[0], (0, 0))\n"
        "tir.compute((100,), lambda i: both((A[i, k], A[i, k]), axis=k))",
        "both = tir.combiner(lambda x, y: (x[0] + y[0], x[1] + y[1]), (0, 0))\n"
        "tir.compute((100,), lambda i: both((A[i, k], A[i, k]), axis=k))",
    ),
    "target.unknown": Entry(
        'A target is "opencl", "cuda", either with options such as -arch=sm_90a, or the name of a device '
        "(tensorir devices).",
        'tir.Schedule(C, target="metal")',
        'tir.Schedule(C, target="cuda -arch=sm_90a")',
    ),
    "space.constraint": Entry(
        "where= maps names to functions of a configuration.",
        'tir.Space(tile=[8, 16], where={"small": True})',
        'tir.Space(tile=[8, 16], where={"small": lambda c: c["tile"] < 16})',
    ),
    "space.constraint-raised": Entry(
        "A constraint raised an exception instead of answering True or False. It is called for every "
        "combination of values.",
        'tir.Space(tile=[0, 8], where={"divides": lambda c: 64 % c["tile"] == 0}).default',
        'tir.Space(tile=[4, 8], where={"divides": lambda c: 64 % c["tile"] == 0}).default',
    ),
    "space.constraint-slow": Entry(
        "A constraint takes so long for one answer that the budget ended before the configurations were listed. It is "
        "asked once for each combination of the knobs that it reads.",
        "# w.tune(budget='10s') with where={'fits': lambda c: slow_model(c['m'], c['n']) < 1}",
        "# functools.cache around what is slow, or the numbers worked out before the space is made",
    ),
    "space.default-illegal": Entry(
        "The declared default configuration breaks a constraint of its own space.",
        'tir.Space(tile=[8, 16], where={"small": lambda c: c["tile"] < 16}, default={"tile": 16})',
        'tir.Space(tile=[8, 16], where={"small": lambda c: c["tile"] < 16}, default={"tile": 8})',
    ),
    "space.empty": Entry(
        "The constraints leave no legal configuration; the message names the one that removes most. Of a space too "
        "large to list, none of the configurations that were drawn is legal: with a legal default, others are found.",
        'tir.Space(tile=[8, 16], where={"tiny": lambda c: c["tile"] < 4}).default',
        'tir.Space(tile=[2, 8, 16], where={"tiny": lambda c: c["tile"] < 4}).default',
    ),
    "space.features": Entry(
        "A features function must give the same number of finite numbers for every configuration; the "
        "surrogate model learns from them.",
        "# features=lambda c: [c['tile']] * c['tile']",
        "# features=lambda c: [c['tile'], c['tile'] ** 2]",
    ),
    "space.illegal": Entry(
        "Constraints of a template's space refuse the configuration that was given: they keep away what cannot be "
        "scheduled, does not fit the device, or is the same as another configuration.",
        'space = tir.Space(tile=[4, 8], vector=[4, 8], where={"divides": lambda c: c["tile"] % c["vector"] == 0})\n'
        'w = tir.Workload("mm", C, {"default": (lambda s, c: s, space)})\nw.schedule({"tile": 4, "vector": 8})',
        'space = tir.Space(tile=[4, 8], vector=[4, 8], where={"divides": lambda c: c["tile"] % c["vector"] == 0})\n'
        'w = tir.Workload("mm", C, {"default": (lambda s, c: s, space)})\nw.schedule({"tile": 8, "vector": 8})',
    ),
    "space.knob-name": Entry(
        "Knobs are named as Python names are, so that conditions (--restrict) can mention them.",
        'tir.Space(**{"tile-size": [8, 16]})',
        "tir.Space(tile_size=[8, 16])",
    ),
    "space.knob-values": Entry(
        "The values of a knob are a non-empty list of different plain values: ints, floats, words, "
        "booleans, None or tuples "
        "of these, which a log can hold.",
        "tir.Space(tile=16)",
        "tir.Space(tile=[16])",
    ),
    "space.missing-knob": Entry(
        "A configuration gives a value to every knob of its space.",
        'tir.Space(x=[1, 2], y=[1, 2]).canonical({"x": 1})',
        'tir.Space(x=[1, 2], y=[1, 2]).canonical({"x": 1, "y": 2})',
    ),
    "space.reserved-knob": Entry(
        "where and default are arguments of Space itself and cannot be names of knobs.",
        "tir.Space(default=[1, 2])",
        "tir.Space(default_=[1, 2])",
    ),
    "space.restrict-grammar": Entry(
        "A condition (--restrict) is a comparison of knobs and numbers with + - * // %, < <= == != >= >, "
        "and, or, not and "
        "parentheses. It is parsed by tensorir's own grammar; nothing else is ever executed.",
        'tir.Space(tile=[8, 16]).restrict("tile.bit_length() < 5")',
        'tir.Space(tile=[8, 16]).restrict("tile < 16")',
    ),
    "space.restrict-type": Entry(
        "A condition compares values of different kinds, or calculates with words.",
        'tir.Space(mode=["row", "col"]).restrict("mode * 2 == 4")',
        """tir.Space(mode=["row", "col"]).restrict("mode == 'row'")""",
    ),
    "space.unknown-knob": Entry(
        "A configuration or condition names a knob that the space does not have.",
        'tir.Space(tile=[8, 16]).canonical({"tiel": 8})',
        'tir.Space(tile=[8, 16]).canonical({"tile": 8})',
    ),
    "space.unknown-value": Entry(
        "A configuration gives a knob a value that is not among those declared.",
        'tir.Space(tile=[8, 16]).canonical({"tile": 12})',
        'tir.Space(tile=[8, 12, 16]).canonical({"tile": 12})',
    ),
    "workload.arguments": Entry(
        "The reference of a workload takes one array for each of its inputs, in order.",
        'w = tir.Workload("mm", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})\nw.reference(a)',
        'w = tir.Workload("mm", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})\nw.reference(a, b)',
    ),
    "workload.file": Entry(
        "A user's file could not give a workload: it is missing, raised an exception, has no function of "
        "that name, or the "
        "function returned something else.",
        "$ tensorir tune kernels.py:my_kernel",
        "# kernels.py: def my_kernel(): return tir.Workload(…)",
    ),
    "workload.name": Entry(
        "A workload's name is a short text: logs are filed under it.",
        'tir.Workload("", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})',
        'tir.Workload("mm", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})',
    ),
    "workload.operator": Entry(
        "There is no operator of that name; tensorir list shows them.",
        "$ tensorir tune matmull 64x64x64",
        "$ tensorir tune matmul 64x64x64",
    ),
    "workload.reference": Entry(
        "The reference of a workload gives a result of another shape than was declared, or its saved result is gone.",
        "# tir.Workload(…, reference=lambda a, b: (a @ b).T)",
        "# tir.Workload(…, reference=lambda a, b: a @ b)",
    ),
    "workload.template": Entry(
        "A template is a pair of a schedule function and its space; a workload needs at least one.",
        'tir.Workload("mm", C, {"default": lambda s, c: s})',
        'tir.Workload("mm", C, {"default": (lambda s, c: s, tir.Space(x=[1]))})',
    ),
}
