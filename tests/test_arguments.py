"""Whatever is passed to a public call, what is raised is ours: a code, the argument, and the user's own line.

Each entry of CALLS is a call whose defaults are good; every parameter in turn is given every one of SAMPLES. What is
accepted must also be usable: a schedule that took the call replays, a tensor that was declared becomes source text.
"""

import inspect
import itertools

import numpy as np
import pytest

import tensorir as tir
from tensorir.api.workload import Template
from tensorir.errors import user_source
from tensorir.export.folder import export
from tensorir.intrin.intrin import Intrin, known, meaning, register
from tensorir.ir.build import MATH
from tensorir.ops.products import blocks_of
from tensorir.runtime.device import devices, open_device
from tensorir.schedule.schedule import StageRef
from tensorir.tune.spec import RunSpec

ONE = (lambda s, c: s, tir.Space(x=[1]))


def matmul(name="C"):
    A, B = tir.placeholder((16, 12), name="A"), tir.placeholder((12, 8), name="B")
    k = tir.reduce_axis(12, name="k")
    P = tir.compute((16, 12), lambda i, r: A[i, r] * 2, name="P")
    C = tir.compute((16, 8), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name=name)
    return A, k, C, tir.compute((16, 8), lambda i, j: tir.maximum(C[i, j], 0), name=f"{name}_relu")


A, K, C, D = matmul()
OTHER = matmul("Z")[2]
ROW, X3 = tir.placeholder((8,), name="row"), tir.placeholder((2, 4, 3), name="X3")
X4, W4 = tir.placeholder((1, 4, 8, 8), name="X"), tir.placeholder((4, 4, 3, 3), name="W")
I8 = tir.placeholder((12,), "int8", name="I8")
B3, GROUP = tir.placeholder((3, 12, 8), name="B3"), tir.placeholder((2,), "int32", name="group")


class Pretender:
    """Has the attributes of what is wanted, and a long repr of several lines."""

    name, shape, dtype, extent, code = 5, None, "thing", "x", object()

    def __repr__(self):
        return "line\n" * 50


SAMPLES = {
    "None": None, "5": 5, "-1": -1, "huge": 2**70, "bool": True, "float": 2.5, "nan": float("nan"), "text": "x",
    "empty text": "", "nul": "a\0b", "[]": [], "[[1]]": [[1]], "tuple": (None, "a"), "{}": {}, "dict": {1: 2},
    "object": object(), "lambda": lambda *a: 1 // 0, "array": np.ones((2, 2)), "bytes": b"x", "tensor": OTHER,
    "expression": OTHER[0, 0], "pretender": Pretender(),
}  # fmt: skip


def element(fn, **others):
    """A small compute of ``fn``."""
    return tir.compute((4,), fn, name="E", **others)


def numbered(**given):
    return tir.Workload(**({"name": "mm", "outputs": C, "templates": {"t": ONE}} | given))


def on_gpu(s):
    """The same computation for a GPU, with a copy in shared memory."""
    made = tir.Schedule(s.outputs, "opencl -kind=gpu")
    made.stage_in("B", "C.k", "shared")
    return made


DECLARE = {
    "placeholder": lambda shape=(8,), dtype="float32", name="A": tir.placeholder(shape, dtype, name),
    "constant": lambda array=((1, 2), (3, 4)), name="c": tir.constant(array, name),
    "dim": lambda name="n", low=1, high=64: tir.dim(name, low, high),
    "reduce_axis": lambda extent=8, name="k": tir.reduce_axis(extent, name),
    "scalar": lambda name="alpha", dtype="float32": tir.scalar(name, dtype),
    "compute": lambda shape=(4,), fn=(lambda i: i), name="C", axes=("i",): tir.compute(shape, fn, name, axes),
    "compute.fn": lambda fn=(lambda i: i): tir.compute((4,), fn),
    "compute.returns": lambda value=1.0: tir.compute((4,), lambda i: value),
    "compute.several": lambda value=1.0: tir.compute((4,), lambda i: (1, value)),
    "Tensor[]": lambda index=0: element(lambda i: I8[index]),
    "Tensor.get": lambda index=0, fill=0: element(lambda i: I8.get(index, fill=fill)),
    "operators": lambda a=3: [
        element(f)
        for f in (
            lambda i: I8[i] + a, lambda i: a - I8[i], lambda i: A[i, 0] * a, lambda i: a / A[i, 0], lambda i: i // a,
            lambda i: i % a, lambda i: A[i, 0] // a, lambda i: I8[i] < a, lambda i: (I8[i] > 0) & (a <= I8[i]),
            lambda i: i + a, lambda i: ~(I8[i] > 0) * a,
        )
    ],
    "where": lambda cond=0, a=1, b=2: element(lambda i: tir.where(i < 2 if cond == 0 else cond, a, b)),
    "cast": lambda x=3, dtype="int8": element(lambda i: tir.cast(x, dtype)),
    "bitcast": lambda x=3, dtype="float32": element(lambda i: tir.bitcast(x, dtype)),
    "mulhi": lambda a=3, b=4: element(lambda i: tir.mulhi(a, b)),
    "combiner": lambda result=(lambda a, b: a + b), identity=0, name="mine", commutative=True: element(
        lambda i: tir.combiner(result, identity, name, commutative)(A[i, K], axis=K)
    ),
    "scatter": lambda shape=4, over=(8,), index=(lambda t: (t % 4,)), value=(lambda t: 1), op="sum", fill=0, name="B": (
        tir.scatter(shape, over, index, value, op, fill, name)
    ),
    "scan": lambda value=A, axis=-1, op="sum", exclusive=False, reverse=False, name="S": tir.scan(
        value, axis, op, exclusive, reverse, name
    ),
    "combiner.pair": lambda result=(lambda a, b: (a[0], b[1])), identity=(0, 0), axis=K, where=None: element(
        lambda i: tir.combiner(result, identity)((A[i, K], I8[K]), axis=axis, where=where)
    ),
    "algorithm": lambda name="mine", error=None, exact=True: tir.algorithm(name, error=error, exact=exact)(tuple),
    "nn.matmul": lambda a=A, b=A, ta=False, tb=True, accumulate=None, name="C": tir.nn.matmul(
        a, b, ta=ta, tb=tb, accumulate=accumulate, name=name
    ),
    "nn.grouped_matmul": lambda a=A, b=B3, group=GROUP, align=8, tb=False, accumulate=None, name="C": (
        tir.nn.grouped_matmul(a, b, group, align=align, tb=tb, accumulate=accumulate, name=name)
    ),
    "nn.conv2d": lambda x=X4, w=W4, stride=1, pad=0, dilation=1, groups=1, layout="NCHW", accumulate=None, name="y": (
        tir.nn.conv2d(x, w, stride=stride, pad=pad, dilation=dilation, groups=groups, layout=layout,
                      accumulate=accumulate, name=name)
    ),
    "nn.pad2d": lambda x=X4, pad=1, layout="NCHW", name="p": tir.nn.pad2d(x, pad, layout=layout, name=name),
    "nn.bias_act": lambda y=C, bias=None, act="relu", axis=1, name="o", alpha=2, d=None, beta=None: tir.nn.bias_act(
        y, bias, act, axis=axis, name=name, alpha=alpha, d=d, beta=beta
    ),
    "nn.relu": lambda x=C, name="r": tir.nn.relu(x, name=name),
    "nn.gelu": lambda x=C, approximate="tanh", name="r": tir.nn.gelu(x, approximate, name=name),
    "nn.softmax": lambda x=C, dim=1, name="r": tir.nn.softmax(x, dim, name=name),
    "nn.log_softmax": lambda x=C, dim=-1, name="r": tir.nn.log_softmax(x, dim, name=name),
    "nn.layer_norm": lambda x=C, shape=(8,), weight=None, bias=None, eps=1e-5, name="r": tir.nn.layer_norm(
        x, shape, weight, bias, eps, name=name
    ),
    "nn.rms_norm": lambda x=C, shape=(8,), weight=None, eps=None, name="r": tir.nn.rms_norm(
        x, shape, weight, eps, name=name
    ),
    "nn.group_norm": lambda x=X4, num_groups=2, weight=None, bias=None, eps=1e-5, name="r": tir.nn.group_norm(
        x, num_groups, weight, bias, eps, name=name
    ),
    "nn.batch_norm": lambda x=C, mean=ROW, var=ROW, weight=None, bias=None, eps=1e-5, name="r": tir.nn.batch_norm(
        x, mean, var, weight, bias, eps, name=name
    ),
    "nn.max_pool2d": lambda x=X4, kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False, name="r": (
        tir.nn.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode, name=name)
    ),
    "nn.avg_pool2d": lambda x=X4, kernel_size=3, stride=2, padding=1, ceil_mode=False, count=True, divisor=None: (
        tir.nn.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count, divisor)
    ),
    "nn.adaptive_avg_pool2d": lambda x=X4, size=(3, 5), name="r": tir.nn.adaptive_avg_pool2d(x, size, name=name),
    "nn.linear": lambda x=C, weight=C, bias=None, name="r": tir.nn.linear(x, weight, bias, name=name),
    "nn.embedding": lambda indices=I8, weight=C, name="r": tir.nn.embedding(indices, weight, name=name),
    "nn.cumsum": lambda x=C, dim=1, name="r": tir.nn.cumsum(x, dim, name=name),
    "nn.conv1d": lambda x=X3, w=X3, stride=1, pad=0, dilation=1, groups=1, name="r": tir.nn.conv1d(
        x, w, stride=stride, pad=pad, dilation=dilation, groups=groups, name=name
    ),
    "nn.conv_transpose2d": lambda x=X4, w=W4, stride=1, pad=0, dilation=1, groups=1, name="r": tir.nn.conv_transpose2d(
        x, w, stride=stride, pad=pad, dilation=dilation, groups=groups, name=name
    ),
    "nn.attention": lambda q=X4, k=X4, v=X4, scale=None, causal=False, mask=None, score=None, name="r": (
        tir.nn.attention(q, k, v, scale=scale, causal=causal, mask=mask, score=score, name=name)
    ),
    "nn.convert": lambda x=C, dtype="float64", name="r": tir.nn.convert(x, dtype, name=name),
}  # fmt: skip
for _name in ("sum", "prod", "min", "max", "any", "all", "argmin", "argmax"):
    DECLARE[_name] = lambda value=A[0, K], axis=K, where=None, f=_name: element(
        lambda i: getattr(tir, f)(value, axis=axis, where=where)
    )
for _name in ("all_", "any_", "equal", "not_equal", "minimum", "maximum", "pow"):
    DECLARE[_name] = lambda a=3, b=I8[0] < 5, f=_name: element(lambda i: getattr(tir, f)(a, b))
for _name in sorted(set(MATH) - {"pow"}):
    DECLARE[_name] = lambda a=3, f=_name: element(lambda i: getattr(tir, f)(a))

SCHEDULE = {
    "split": lambda s, axis="C.i", factors=(None, 4), tail="guard", names=("a", "b"): s.split(
        axis, factors, tail, names
    ),
    "fuse": lambda s, a="C.i", b="C.j", name="tile": s.fuse(a, b, name=name),
    "reorder": lambda s, a="C.j", b="C.i": s.reorder(a, b),
    "tile": lambda s, a="C.i", b="C.j", factors=(2, 4): s.tile(a, b, factors=factors),
    "share_out": lambda s, axis="C_relu.i", each=2, to="block.x", tail="guard": s.share_out(
        axis, each=each, to=to, tail=tail
    ),
    "share_out.within": lambda s, within="thread.x": on_gpu(s).share_out("C.i", each=2, within=within),
    "register_tile": lambda s, a="C.i", b="C.j", sizes=(2, 4), lanes=2, tail="guard", terms=2: s.register_tile(
        a, b, sizes=sizes, lanes=lanes, tail=tail, terms=terms
    ),
    "bind": lambda s, axis="C.i", to="block.x": s.bind(axis, to),
    "vectorize": lambda s, axis="C_relu.j": s.vectorize(axis),
    "parallel": lambda s, axis="C.i": s.parallel(axis),
    "unroll": lambda s, axis="C.k": s.unroll(axis),
    "partition": lambda s, axis="C.i", at=(4,): s.partition(axis, at),
    "cut": lambda s, axis="C.i", at=4: s.cut(axis, at),
    "reindex": lambda s, stage="C", view="i, j | k -> t = (i, j), k = k", pad={"t": 4}, name="part": s.reindex(
        stage, view, pad, {"B": "t, k"}, name
    ),
    "reindex.reads": lambda s, reads={"B": "t, k"}: s.reindex("C", "i, j | k -> t = (i, j), k = k", reads=reads),
    "compute_at": lambda s, stage="P", consumer="C", axis="i", scope="register": s.compute_at(
        stage, consumer, axis, scope
    ),
    "reverse_compute_at": lambda s, stage="C_relu", producer="C", axis="j": s.reverse_compute_at(stage, producer, axis),
    "compute_inline": lambda s, stage="P": s.compute_inline(stage),
    "stage_in": lambda s, tensor="A", at="P.i", scope="register", vector=None, pad=0, order=None, cooperative=True: (
        s.stage_in(tensor, at, scope, vector, pad, order, cooperative)
    ),
    "stage_in.more": lambda s, run="once", layout=None: s.stage_in("B", "root", "global", run=run, layout=layout),
    "stage_out": lambda s, stage="C", at="C.j", scope="register", layout=None: s.stage_out(stage, at, scope, layout),
    "set_scope": lambda s, tensor="P", scope="global": s.set_scope(tensor, scope),
    "layout": lambda s, tensor="P", layout=None, pad=0, order=(1, 0): s.layout(tensor, layout, pad, order),
    "layout.text": lambda s, layout="a, b -> b, a": s.layout("P", layout),
    "run_once": lambda s, tensor="P": s.stage_in("B", "root", "global").schedule.run_once("B_global"),
    "decompose_reduction": lambda s, stage="C", axis="k": s.decompose_reduction(stage, axis),
    "rfactor": lambda s, stage="C", axis="k": s.rfactor(stage, axis),
    "reduce_in_lanes": lambda s, stage="C", axis="k", lanes=2, vectors=1, joined=2, at=None: s.reduce_in_lanes(
        stage, axis, lanes, vectors, joined, at
    ),
    "reduce_across": lambda s, axis="C.k", to="thread.x": s.reduce_across(axis, to),
    "atomic": lambda s, stage="C": (
        tir.Schedule(s.outputs, "cuda").decompose_reduction("C", "C.i").schedule.atomic(stage)
    ),
    "annotate": lambda s, axis="C.k", key="unroll", value=2: s.annotate(axis, key, value),
    "prefetch": lambda s, tensor="P", at="C.k", ahead="C.i", distance=1: s.prefetch(tensor, at, ahead, distance),
    "pipeline": lambda s, axis="C.k", depth=2: on_gpu(s).pipeline(axis, depth),
    "assume": lambda s, tensor="A", align=64: s.assume(tensor, align),
    "redeclare": lambda s, algorithm="stream_k", rest=4, of="C": s.redeclare(algorithm, rest=rest, of=of),
    "specialize": lambda s, axis="C.i", cond="C.i < 3": s.specialize(axis, cond),
    "s[]": lambda s, stage="C": s[stage],
    "s[].axis": lambda s, axis="i": s["C"].split(axis, [None, 4]),
    "s[].stage_out": lambda s, at="j": s["C"].stage_out(at),
    "s[].compute_at": lambda s, consumer="C", axis="i": s["P"].compute_at(consumer, axis),
    "loops": lambda s, stage="C": s.loops(stage),
    "stages": lambda s, tensor="C": s.stages(tensor),
    "undo": lambda s, n=0: s.undo(n),
    "because": lambda s, why="rows fill the cache": s.because(why).__enter__(),
    "at": lambda s, step=0: s.at(step),
    "diff": lambda s, other=tir.Schedule(OTHER): s.diff(other),
    "replay": lambda s, trace="[]": s.replay(trace),
    "replay.step": lambda s, name="split", args=("C.i", [None, 4]): s.replay(tir_json([name, args, {}])),
    "replay.options": lambda s, tail="exact", names=None: s.replay(
        tir_json(["split", ["C.i", [None, 4]], {"tail": tail, "names": names}])
    ),
    "emitted": lambda s, target="cuda": s.emitted(target),
    "source": lambda s, target="cuda": s.source(target),
    "with_source": lambda s, text="text": s.with_source(text),
    "check": lambda s, level="fast", seed=0: s.check(level, [{"C_relu.i": 2, "C_relu.j": 2}], seed),
    "check.shapes": lambda s, shapes=({"C_relu.i": 2},): s.check(shapes=shapes),
    "check.shape": lambda s, axis="C_relu.i", n=2: s.check(shapes=[keyed(axis, n)]),
}
REFUSED = {
    "keep_term": lambda s, axis="C.k", value="0": s.keep_term(axis, value),
    "assume.range": lambda s, low=0, high=4: s.assume("A", low=low, high=high),
    "tensorize": lambda s, axis="C.i", intrin="fma.f32x4": s.tensorize(axis, intrin),
    "skip": lambda s, axis="C.k": s.skip(axis),
    "rolling": lambda s, stage="P", into=("C",), at="C.k": s.rolling(stage, into, at),
    "fuse_with": lambda s, stage="C", other="C_relu": s.fuse_with(stage, other),
    "clone": lambda s, stage="C", for_="C_relu": s.clone(stage, for_=for_),
    "reverse_compute_inline": lambda s, stage="C_relu": s.reverse_compute_inline(stage),
}
"""Calls that are refused even with good arguments here."""

SIMPLE = element(lambda i: I8[i] + 1)
SPACE = tir.Space(tile=[1, 2, 4], mode=["a", "b"])
WORK = numbered()
OTHERS = {
    "Schedule": lambda outputs=C, target="opencl": tir.Schedule(outputs, target),
    "replay": lambda outputs=C, trace="[]", target="cuda": tir.replay(outputs, trace, target),
    "auto": lambda outputs=C, target="opencl", precision="fp32": tir.auto(outputs, target, precision),
    "auto_schedule": lambda outputs=C, target="cuda": tir.auto_schedule(outputs, target),
    "fusions": lambda outputs=C, target="cuda", measure=False, rounds=5: tir.fusions(outputs, target, measure=measure,
                                                                                      rounds=rounds),
    "Target": lambda language="cuda", kind="gpu", arch="sm_80", max_threads=32, max_block=(1, 1, 1), fp16=True: (
        tir.Target(language, kind, arch, max_threads=max_threads, max_block=max_block, fp16=fp16)
    ),
    "Target.parse": lambda text="cuda": tir.Target.parse(text),
    "Space": lambda where=None, default=None, tile=(1, 2): tir.Space(where=where, default=default, tile=tile).legal,
    "Space.where": lambda name="w", test=lambda c: True: tir.Space(where=keyed(name, test), tile=[1, 2]).explain(),
    "Space.config": lambda row=0: SPACE.config(row),
    "Space.index": lambda config=SPACE.default: SPACE.index(config),
    "Space.canonical": lambda config=SPACE.default: SPACE.canonical(config),
    "Space.restrict": lambda condition="tile < 4": SPACE.restrict(condition),
    "Space.when": lambda condition=lambda c: True: SPACE.when(tile=condition),
    "Space.describing": lambda features=lambda c: [c["tile"]]: SPACE.describing(features),
    "powers_of_two": lambda low=1, high=8: tir.powers_of_two(low, high),
    "divisors": lambda extent=12, low=1, high=None: tir.divisors(extent, low, high),
    "permutations": lambda things="ij": tir.permutations(things),
    "Space.pin": lambda tile=1: SPACE.pin(tile=tile),
    "Space.values_text": lambda name="tile": SPACE.values_text(name),
    "Workload": lambda name="mm", outputs=C, templates={"t": ONE}, reference=None: tir.Workload(
        name, outputs, templates, reference
    ),
    "Workload.more": lambda flops=None, baselines=None, parameters=None, origin=None: numbered(
        flops=flops, baselines=baselines, parameters=parameters, origin=origin
    ),
    "Workload.origin": lambda kind="ops", name="matmul", options={}, place="": numbered(
        origin=(kind, name, options, place)
    ),
    "Template": lambda name="t", function=ONE[0], space=SPACE, kinds=("cpu",): Template.of(
        name, (function, space, kinds)
    ),
    "Workload.reference": lambda a=np.ones((16, 12), "f"), b=np.ones((12, 8), "f"): WORK.reference(a, b),
    "Workload.random_inputs": lambda seed=0: WORK.random_inputs(seed),
    "Workload.template_for": lambda target="cuda", template="t": WORK.template_for(target, template),
    "Workload.schedule": lambda config=None, template="t", target="cuda": WORK.schedule(config, template, target),
    "Workload.tune": lambda trials=None, budget="60s", seed=0, log="log", on_trial=None: RunSpec.of(
        trials=trials, budget=budget, seed=seed, log=log, on_trial=on_trial
    ),
    "Workload.tune.options": lambda restrict=(), timeout="5s", compile_timeout=9, fresh=False, patience=3, top=5,
    started=None, stop=None, on_start=None, on_baseline=None: RunSpec.of(
        restrict=restrict, timeout=timeout, compile_timeout=compile_timeout, fresh=fresh, patience=patience,
        top=top, started=started, stop=stop, on_start=on_start, on_baseline=on_baseline,
    ),
    "ops.matmul": lambda m=8, n=8, k=8, batch=1, ta=False, tb=False, dtype="float32", bias=False, act=None,
    alpha=False, beta=False, prepack=False: tir.ops.matmul(
        m, n, k, batch, ta, tb, dtype, bias, act, alpha, beta, prepack
    ),
    "ops.grouped_matmul": lambda m=32, n=8, k=8, groups=2, align=16, tb=False, dtype="float32", act=None: (
        tir.ops.grouped_matmul(m, n, k, groups, align, tb, dtype, act)
    ),
    "blocks_of": lambda sizes=(3, 0), align=16, m=32: blocks_of(sizes, align, m),
    "ops.conv2d": lambda n=1, c=4, h=8, w=8, k=4, r=3, s=3, stride=1, pad=0, dilation=1, groups=1, layout="NCHW",
    dtype="float32", bias=False, act=None: tir.ops.conv2d(
        n, c, h, w, k, r, s, stride, pad, dilation, groups, layout, dtype, bias, act
    ),
    "meaning": lambda output=SIMPLE, accumulate=False: meaning(output, accumulate),
    "register": lambda intrin=next(iter(known().values())): register(intrin),
    "Intrin": lambda name="my.i", semantics=meaning(SIMPLE), emit={}, source="7", align={}, needs=(): Intrin(
        name, semantics, emit, source, align, needs
    ),
    "Intrin.emit": lambda language="opencl", text="f({E});": Intrin(
        "my.i", meaning(SIMPLE), keyed(language, text), "7"
    ),
    "empty": lambda shape=(2,), dtype="float32": tir.empty(shape, dtype),
    "sequence": lambda launches=(): tir.sequence(launches),
    "sequence.one": lambda launch=None: tir.sequence([launch]),
    "tune_shapes": lambda works=(), trials=None, budget="1s", seed=0, log="log", weights=None, regret=0.05: (
        tir.tune_shapes(works, None, trials, budget, seed, log, weights=weights, regret=regret)
    ),
    "export_shapes": lambda works=(WORK,), path="o", to=("source",), weights=None, regret=0.05, target=None, log="l": (
        tir.export_shapes(works, path, to, weights=weights, regret=regret, target=target, log=log)
    ),
    "open_device": lambda name="opencl:99:99": open_device(name),
}  # fmt: skip


def keyed(key, value):
    """A dict, or an empty one where no dict can have such a key."""
    return {key: value} if key.__hash__ else {}


def tir_json(step):
    import json

    return json.dumps([step], default=str)


def cases(calls):
    return [
        pytest.param(call, p.name, id=f"{name}-{p.name}")
        for name, call in calls.items()
        for p in inspect.signature(call).parameters.values()
        if p.default is not p.empty and p.name != "f"
    ]


def ours(act):
    """What ``act`` gives, or None when it is refused; anything but our own error with the user's line is a failure."""
    try:
        return act()
    except tir.TensorIRError as e:
        text = str(e)
        assert len(text.splitlines()) <= 12, text
        assert "test_arguments.py" in e.where, text
        return None


def use(made):
    """What was declared becomes text, or is refused."""
    for t in itertools.chain.from_iterable(m if isinstance(m, tuple) else (m,) for m in made):
        if isinstance(t, tir.Tensor) and t.op is not None:
            ours(lambda t=t: tir.Schedule(t).source("cuda"))


@pytest.mark.parametrize("calls", [DECLARE, SCHEDULE, OTHERS], ids=["declare", "schedule", "others"])
def test_the_defaults_are_good(calls):
    for name, call in calls.items():
        if name not in ("open_device", "sequence", "sequence.one", "tune_shapes", "export_shapes"):  # a device, a log
            call(*([tir.Schedule(D)] if calls is SCHEDULE else []))


@pytest.mark.parametrize(("call", "name"), cases(DECLARE))
def test_declarations(call, name):
    for given in SAMPLES.values():
        made = ours(lambda given=given: call(**{name: given}))
        use(made if isinstance(made, list) else [made])


@pytest.mark.parametrize(("call", "name"), cases(SCHEDULE | REFUSED))
def test_schedules(call, name):
    for what, given in SAMPLES.items():
        s = tir.Schedule(D)
        if ours(lambda s=s, given=given: call(s, **{name: given})) is None:
            assert not s.trace, what
        assert str(tir.Schedule(D).replay(s.trace.to_json())) == str(s)


@pytest.mark.parametrize(("call", "name"), cases(OTHERS))
def test_others(call, name):
    for given in SAMPLES.values():
        ours(lambda given=given: call(**{name: given}))


@pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)
def test_executables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    f = tir.Schedule(C).build()
    a, b = np.ones((16, 12), "float32"), np.ones((12, 8), "float32")
    for given in SAMPLES.values():
        for act in (
            lambda x: f(x, b), lambda x: f(a, b, out=x), lambda x: f.bind(a, x), lambda x: f.export("out", x),
            lambda x: tir.Schedule(C).export(x, "source"), lambda x: f.export("out", name=x),
            lambda x: f.prepack(B=x), lambda x: f.prepack(**{str(x): b}),
            lambda x: f.time(a, b, repeat=1 if x == 5 else x) if not isinstance(x, np.ndarray) else None,
            lambda x: tir.Schedule(C).build(x) if x is not None else None,
            lambda x: WORK.load(x, log="nowhere") if x is not None else None, lambda x: WORK.load(log=x),
            lambda x: WORK.load(log="nowhere", nearest=x), lambda x: tir.nearest(x, log="nowhere"),
            lambda x: tir.nearest(WORK, x, "nowhere") if x is not None else None, lambda x: tir.nearest(WORK, log=x),
        ):  # fmt: skip
            ours(lambda act=act, given=given: act(given))
    for given in (None, 5, "", [], object(), "a\0b", b"x", 2**70):
        with pytest.raises(tir.TensorIRError):
            f.export(given)
        with pytest.raises(tir.TensorIRError):
            tir.Schedule(C).export(given)
        with pytest.raises(tir.TensorIRError):
            export(f.emitted, given, ["source"], outputs=[C])


def test_a_call_that_is_right_does_not_read_the_users_source(monkeypatch):
    """A tensor among the arguments is not asked whether it is an int: what it answers repeats the line that asks."""

    def read(*_):
        raise AssertionError("the user's source was read")

    monkeypatch.setattr(user_source.ast, "parse", read)
    x, w = tir.placeholder((1, 4, 8, 8), name="x"), tir.placeholder((4, 4, 3, 3), name="w")
    y = tir.nn.conv2d(x, w, pad=np.int64(1))
    assert y.shape == (1, 4, 8, 8) and tir.nn.matmul(*(tir.placeholder((4, 4), name=n) for n in "ab")).shape == (4, 4)
    tir.ops.conv2d(c=np.int32(8)), tir.ops.matmul(m=16)


def test_every_public_call_is_here():
    """A new function or method gets a line above."""
    here = {n.split(".")[0] for n in (*DECLARE, *OTHERS)}
    classes = {"Tensor", "Executable", "nearest"}  # and what the test of executables calls
    public = {n for n, home in tir._WHERE.items() if home != "tensorir.errors"}
    assert sorted(public - here - classes) == []
    methods = {n for n, m in inspect.getmembers(tir.Schedule, inspect.isfunction) if not n.startswith("_")}
    assert sorted(methods - set(SCHEDULE) - set(REFUSED) - {"build", "fork", "tree", "blame", "export"}) == []
    handles = {n for n, m in inspect.getmembers(StageRef, inspect.isfunction) if not n.startswith("_")}
    assert handles - {"axis"} <= methods


def test_every_public_function_answers_for_what_python_cannot_look_at():
    modules = [tir, *(m for n in tir.__all__ if inspect.ismodule(m := getattr(tir, n)))]
    functions = {f"{m.__name__}.{n}": getattr(m, n) for m in modules for n in getattr(m, "__all__", ())}
    open_ = [n for n, f in functions.items() if inspect.isfunction(f) and not hasattr(f, "__wrapped__")]
    assert len(functions) > 100 and not open_, "errors.habits.answers"
