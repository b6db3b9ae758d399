"""One object of every public class, made as a user gets it."""

import tempfile
from functools import cache

import numpy as np

import tensorir as tir
from tensorir.api.shape_outcome import SetOutcome
from tensorir.codegen.source import Assumed, DimRange, GatherRange, SegmentRange, TensorMap, UniquePlaces
from tensorir.errors import Problem
from tensorir.ir.marks import UnrollBy
from tensorir.ir.tree import Fact, Layout
from tensorir.runtime.estimate import Estimate


def declared():
    A = tir.placeholder((64, 96), name="A")
    B = tir.placeholder((96, 128), name="B")
    k = tir.reduce_axis(96, name="k")
    return A, B, tir.compute((64, 128), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")


def scheduled(C, B):
    s = tir.Schedule(C)
    io, ii = s.split("C.i", [None, 8])
    jo, ji = s.split("C.j", [None, 16])
    ko, ki = s.split("C.k", [None, 32])
    s[C].reorder(io, jo, ko, ki, ii, ji)
    s.stage_in(B, at=ko, scope="register")
    s.parallel(io)
    s.vectorize(ji)
    s.unroll(ii)
    return s


def refused(call) -> tir.TensorIRError:
    try:
        call()
    except tir.TensorIRError as error:
        return error
    raise AssertionError("not refused")


@cache
def tuned() -> SetOutcome:
    works = [tir.ops.matmul(m=32, n=48, k=n) for n in (16, 32)]
    return tir.tune_shapes(works, trials=2, budget="60s", log=tempfile.mkdtemp(), builders=1, final_s=0.2)


@cache
def specimens() -> dict[str, object]:
    """By the name of the class, a name after a full stop telling those of one name apart."""
    A, B, C = declared()
    s = scheduled(C, B)
    f = s.build()
    a, b = (np.ones(t.shape, np.float32) for t in (A, B))
    bound = f.bind(a, b)
    program = s.program
    stage = s.index.stages["C"]
    found = tuned()
    fused = tir.fusions(tir.nn.softmax(tir.placeholder((16, 64), name="x"), -1))
    result = next(r for r in found.results if r.outcome is not None)
    outcome = result.outcome
    error = refused(lambda: s.split("C.j.1", [3, 5]))
    errors = ("CheckError", "CompileError", "DeviceError", "LoweringError", "LaunchError", "NotTuned", "TensorIRError")
    raised = {n: getattr(tir, n)(Problem("check.level", "there is no such level", hint="one of fast, device"))
              for n in errors}  # fmt: skip
    return raised | {
        "UserCombiner": tir.combiner(lambda a, b: (a[0] * b[0], a[0] * b[1] + a[1]), (1, 0), commutative=False),
        "Combiner": tir.combiner(lambda a, b: a + b, 0).joining(["float32"], several=False),
        "Const": tir.combiner(lambda a, b: a + b, 0).joining(["float32"], several=False).identity[0],
        "Tensor": C, "Var": tir.reduce_axis(8, name="k"), "Expr": A[0, 1] * 2 + 1, "Compute": C.op, "Schedule": s,
        "BaseSchedule": s, "Executable": f, "Program": program, "CompiledProgram": f.program,
        "Source": s.emitted(), "Trace": s.trace,
        "Step": s.trace[-1], "StageRef": s[C], "AxisRef": s[C].axes[0], "Index": s.index,
        "Text": s.diff(s.at(5)), "Verdict": s.check(), "Timing": f.time(a, b, repeat=20), "BoundLaunch": bound,
        "Operator": tir.ops.matmul().operator,
        "LaunchSequence": tir.sequence([bound]), "Device": f.device, "CompiledModule": f.program._module,
        "Target": tir.Target.parse("cuda -arch=sm_90a"), "Param": f.emitted.params[0],
        "KernelLaunch": f.emitted.kernels[0], "GatherRange": GatherRange("index", 64, "table"),
        "UniquePlaces": UniquePlaces("table", (64,), (("index", (0,)),)),
        "DimRange": DimRange("n", 1, 64), "SegmentRange": SegmentRange("pointers", 0, 64, "k"),
        "Assumed": Assumed("A", align=64), "TensorMap": TensorMap("A_map", "A", "float16", (64, 64), (64, 64)),
        "Buffer": program.inputs[0], "Stmt": program.body, "Loop": next(iter(s.index.loops.values())), "Stage": stage,
        "Iter": stage.iters[0], "Fact": Fact(program.inputs[0], align=64), "Node": program.body,
        "Layout": Layout(("i", "j"), ((0, 1, 0), (1, 1, 0))), "LoopMark": UnrollBy(4),
        "Space": tir.Space(tile=[1, 2, 4], mode=["row", "col"], where={"fits": lambda c: c["tile"] < 4}),
        "Workload": result.work, "Work": result.work, "Template": next(iter(result.work.templates.values())),
        "TuneOutcome": outcome, "RunIdentity": outcome.identity, "Timed": outcome.best,
        "MachineReport": outcome.machine, "Record": outcome.records[0],
        "Ratio": outcome.gain, "Span": outcome.best.span, "ProcessorLoad": outcome.machine.load,
        "SetOutcome": found, "ShapeResult": result, "RankedRecord": result.choices[0], "Portfolio": found.portfolio,
        "Dispatch": found.portfolio.dispatch, "Served": found.portfolio.served[0],
        "DispatchKernel": found.portfolio.kernels[0],
        "NearestShape": tir.nearest(tir.ops.matmul(m=32, n=48, k=24), log=_log(outcome))[0],
        "Fusions": fused, "Fusion": fused[0], "Counts": fused[0].before,
        "Expected": tir.Schedule(s.outputs, "opencl -units=16").expected,
        "Estimate": Estimate(1.5, 1.4, 1.6, (1.4, 1.5)),
        "ScheduleError": error, "Problem": error.problems[0], "DeclarationError": refused(lambda: A[0]),
    }  # fmt: skip


def _log(outcome) -> str:
    return outcome.log_path.rpartition("/")[0].rpartition("/")[0]


def specimen(cls: type) -> object:
    """The specimen of a class."""
    every = specimens()
    return every.get(f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}", every.get(cls.__name__))
