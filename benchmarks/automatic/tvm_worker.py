"""Runs with the Python of an environment that has apache-tvm: tunes one problem by MetaSchedule, then times slots.

    python tvm_worker.py '{"name": "matmul", "shape": [512, 512, 512]}' TRIALS FOLDER

Reads lines from standard input and answers each with one of JSON: ``run`` with a file of the inputs (npz) gives that of
the output; ``time CALLS`` gives seconds of one call, the mean of a slot of so many; ``end`` ends it.
"""

import json
import sys
import time

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

CORES = 2
NEVER = 1e9
"""Seconds that MetaSchedule notes of a candidate that did not run."""


def declare(problem):
    """The problem in TVM's tensor expressions; inputs, then the output."""
    name, shape = problem["name"], problem["shape"]
    place = lambda n, *s: te.placeholder(s, name=n, dtype="float32")  # noqa: E731
    if name == "matmul":
        m, n, k = shape
        a, b = place("a", m, k), place("b", k, n)
        return [a, b, topi.nn.matmul(a, b)]
    if name == "softmax":
        x = place("x", *shape)
        return [x, topi.nn.softmax(x, axis=-1)]
    (n, c, h, w), (k, cg, r, s) = shape
    x, f, pad, stride = place("x", n, c, h, w), place("w", k, cg, r, s), problem["pad"], problem.get("stride", 1)
    if problem.get("groups", 1) == c:
        f = place("w", c, 1, r, s)
        return [x, f, topi.nn.depthwise_conv2d_nchw(x, f, stride, pad, 1)]
    return [x, f, topi.nn.conv2d_nchw(x, f, stride, pad, 1)]


def tuned(problem, trials, folder):
    """The compiled best of so many trials, of those that the folder has already; None where no candidate ran."""
    args = declare(problem)
    module = tvm.IRModule({"main": te.create_prim_func(args)})
    cpu = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": CORES}
    target = tvm.target.Target(cpu)
    database = ms.database.JSONDatabase(work_dir=folder)
    if len(database) < trials // 2:  # some candidates are no programs, and are not kept
        database = ms.tune_tir(module, target, folder, max_trials_global=trials, num_trials_per_iter=min(32, trials))
    if not any(float(t) < NEVER for r in database.get_all_tuning_records() for t in r.run_secs or ()):
        return None, []
    schedule = ms.tir_integration.compile_tir(database, module, target)
    return tvm.compile(schedule.mod, target), [tuple(int(n) for n in t.shape) for t in args]


def main():
    problem, trials, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers, sys.stdout = sys.stdout, sys.stderr  # what MetaSchedule prints is no answer
    started = time.time()
    run, shapes = tuned(problem, trials, folder)
    told = {"tuned_s": time.time() - started, "version": tvm.__version__, "ran": run is not None}
    print(json.dumps(told), file=answers, flush=True)
    device, given = tvm.cpu(), None
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "end":
            return
        if word == "run":
            arrays = [*np.load(rest).values(), np.zeros(shapes[-1], "float32")]
            given = [tvm.runtime.tensor(a, device) for a in arrays]
            run["main"](*given)
            np.save(rest + ".out.npy", given[-1].numpy())
            answer = rest + ".out.npy"
        else:
            begin = time.perf_counter()
            for _ in range(int(rest)):
                run["main"](*given)
            answer = (time.perf_counter() - begin) / int(rest)
        print(json.dumps(answer), file=answers, flush=True)


main()
