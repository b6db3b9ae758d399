"""Candidates that crash, hang, blow up or lie, mixed among good ones; run by the measuring process.

Most evil ones have less work than the good ones, so whichever is believed wins.
"""

import os
import threading
import time
from dataclasses import replace

import tensorir as tir
from tensorir.api.schedule import Schedule
from tensorir.codegen.source import Param
from tensorir.ir.visit import Rewriter
from tensorir.lower.emit_guards import emit_guards
from tensorir.lower.pipeline import PASSES

SIZE, TILE, TURNS = 64, 32, 100_000
GOOD = {"good": 1.0, "same": 1.0, "half": 1.5, "twice": 2.0}  # how long each takes
BOMB = (
    "#define B0\n" + "".join(f"#define B{n} B{n - 1} B{n - 1}\n" for n in range(1, 41)) + "B40\n"
)  # 2**40 times nothing
STATUS = {
    "slow": "skipped_slow",
    "segfault": "crashed",
    "abort": "crashed",
    "loop": "run_timeout",
    "last": "run_timeout",  # in its last block only
    "sleep": "run_timeout",
    "memory": "resource_limit",
    "workspace": "resource_limit",
    "text": "compile_error",
    "bomb": "compile_timeout",
    "edge": "wrong_result",  # at shapes with a tail, as the interpreter finds
    "tail": "wrong_result",  # likewise, but only in the text for the device, where each new best is tried
    "element": "wrong_result",
    "beyond": "wrong_result",
    "nan": "wrong_result",
    "whole": "wrong_result",  # on normal floats, on which each new best is tried
    "clock": "nondeterministic",
    "interrupt": "illegal_schedule",
    "thread": "illegal_schedule",
    "raise": "illegal_schedule",
    "illegal": "illegal_schedule",
}
"""The status that each evil candidate must get."""
LATE = {"later": "wrong_result"}
"""Those that only the final round finds out, on normal floats: no new best, but one of the fastest."""

STATEMENT = {
    "segfault": "*(volatile __global int*)(size_t)8 = 1;",
    "loop": "for (volatile int turn = 0; turn < 1;);",
    "last": "if (get_group_id(0) == 1) for (volatile int turn = 0; turn < 1;);",
    "element": "if (get_group_id(0) == 1) C[63] += 1.0f;",
    "beyond": "C[64] = 1.0f;",
    "nan": "C[5] = NAN;",
    "clock": 'uint low, high; __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)); C[7] += (float)(low % 1021);',
    "whole": "for (int i = 0; i < 64; ++i) C[i] = (float)(int)(A[i] * 5.0f + 7.0f);",
}
STATEMENT["later"] = f"for (volatile int turn = 0; turn < {int(TURNS * 1.35)}; ++turn); {STATEMENT['whole']}"
"""What they do after everything else."""


def edited(s, before="", after="", top=""):
    """``s`` with statements around the kernel's body, and text above it."""
    head, brace, body = s.source().partition("{\n")
    body = body.rstrip().removesuffix("}")
    return s.with_source(f"{top}{head}{brace}  {before}\n{body}  {after}\n}}\n")


def idle(turns):
    return f"for (volatile int turn = 0; turn < {int(turns)}; ++turn);"


class Miscompiled(Schedule):
    """The printer leaves out the end of each tile, for every shape but the one that is tuned."""

    def emitted(self, target=None):
        source = super().emitted(target)
        good = self.outputs[0].shape == (SIZE,)
        return source if good else replace(source, text=source.text.replace(" < ", " < -1 + "))


class Hungry(Schedule):
    """It wants 20 GB of intermediate results."""

    def emitted(self, target=None):
        source = super().emitted(target)
        return replace(source, params=(*source.params, Param("between", "float32", (5 << 30,), "workspace")))


class Unguarded(Rewriter):
    def on_If(self, n):
        return self(n.then)


def without_guards(program, target):
    """The pass that makes conditions of tails, broken."""
    made = emit_guards(program, target)
    return replace(made, body=Unguarded()(made.body))


def corpus(evil=True):
    """Good candidates, and one of each kind of evil."""
    A = tir.placeholder((SIZE,), name="A")
    C = tir.compute((SIZE,), lambda i: A[i] * 5 + 7, name="C")

    def schedule(s, config):
        kind = config["kind"]
        # schedules are made in the process that measures, and nowhere else
        PASSES[:] = [without_guards if kind == "edge" and p is emit_guards else p for p in PASSES]
        PASSES[:] = [emit_guards if kind != "edge" and p is without_guards else p for p in PASSES]
        outer, _ = s.split("C.i", [None, 1 if kind == "slow" else TILE])
        s.bind(outer, "block.x")
        if kind in GOOD:
            return edited(s, idle(TURNS * GOOD[kind]), f"// {kind}")
        if kind in STATEMENT:
            return edited(s, after=STATEMENT[kind])
        match kind:
            case "slow":
                return edited(s, idle(TURNS * 100))
            case "abort":
                os.abort()
            case "sleep":
                time.sleep(10_000)
            case "memory":
                bytearray(20 << 30)
            case "workspace":
                return Hungry(s.outputs, s.target).replay(s.trace)
            case "tail":
                return Miscompiled(s.outputs, s.target).replay(s.trace)
            case "text":
                return s.with_source("this is not C")
            case "bomb":
                return edited(s, top=BOMB)
            case "raise":
                raise KeyError("not here")
            case "interrupt":
                raise KeyboardInterrupt
            case "thread":
                threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="left").start()
            case "illegal":
                s.bind("C.nothing", "block.x")
        return s

    kinds = [*GOOD, *([*STATUS, *LATE] if evil else ())]
    return tir.Workload("chaos", C, templates={"t": (schedule, tir.Space(kind=kinds))})
