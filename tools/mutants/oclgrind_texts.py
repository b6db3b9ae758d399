"""Small changes of the emitted OpenCL text, run under Oclgrind: races, uninitialised values, bounds, wrong results.

The interpreter never sees this text, so that this also tells whether it and the printer agree about what is wrong.
A text mutant that neither Oclgrind nor the result gives away is looked up in the interpreter's own findings by hand:
the numbers are reported, they do not fail the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAMES = ("tiled opencl", "chain opencl", "exchange opencl", "pool opencl", "vectors opencl", "argmin opencl")
_ACCESS = re.compile(r"\b(\w+)\[([^\[\]]+)\]")
_BOUND = re.compile(r"< (\d+)\b")


def variants(text: str) -> Iterator[tuple[str, str]]:
    """Texts with one change each, and what it was."""
    start = text.index("__kernel")
    for m in re.finditer(r"\n *barrier\([^;]*;", text):
        yield "barrier deleted", text[: m.start()] + text[m.end() :]
    for m in _BOUND.finditer(text, start):
        for by in (1, -1):
            yield f"{m[0]} {by:+}", f"{text[: m.start()]}< {int(m[1]) + by}{text[m.end() :]}"
    for m in _ACCESS.finditer(text, start):
        line = text[text.rfind("\n", 0, m.start()) + 1 : m.start()].split()
        if line and re.fullmatch(r"__local|__constant|(float|int)\d*", line[0]):
            continue  # a declaration
        yield f"{m[0]} +1", f"{text[: m.start()]}{m[1]}[{m[2]} + 1]{text[m.end() :]}"


def text_mutants(names: Sequence[str] = NAMES, each: int = 12) -> dict[str, Any]:
    """Counts by outcome, and the mutants that nobody noticed."""
    out: dict[str, Any] = {"mutants": 0, "killed": 0, "by": {}, "not_killed": []}
    for name in names:
        env = {
            **os.environ,
            "OCLGRIND_DATA_RACES": "1",
            "OCLGRIND_UNINITIALIZED": "1",
            "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
        }
        done = subprocess.run(
            [sys.executable, __file__, name, str(each)], env=env, capture_output=True, text=True, check=False
        )
        for line in done.stdout.splitlines():
            what, _, text = line.partition("\t")
            out["mutants"] += 1
            out["by"][what] = out["by"].get(what, 0) + 1
            if what == "nothing":
                out["not_killed"].append(f"{name}: {text}")
            else:
                out["killed"] += 1
        if done.returncode:
            out["by"]["crash"] = out["by"].get("crash", 0) + 1
            out["killed"] += 1
            out["mutants"] += 1
    return out


def child(name: str, each: int) -> None:
    """Run some text mutants of one program and print what noticed each."""
    import numpy as np
    from mutated_programs import PROGRAMS

    from tensorir.api.schedule import emit_source
    from tensorir.codegen.source import Source
    from tensorir.interp.reference import evaluate, random_arguments
    from tensorir.runtime.device import open_device
    from tensorir.runtime.launch import CompiledProgram

    s = PROGRAMS[name]()
    source = emit_source(s, s.target)
    device = open_device("opencl:oclgrind")
    rng = np.random.default_rng(0)
    arrays = [
        rng.permutation(x.size).reshape(x.shape).astype(x.dtype) if x.dtype.kind == "f" else x
        for x in random_arguments(s.outputs, 0)
    ]
    want = evaluate(s.outputs, arrays)

    def outcome(text: str) -> str:
        changed = Source(source.name, source.language, text, source.params, source.kernels, source.gathers)
        sys.stderr.flush()
        saved = os.dup(2)
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            try:
                got = CompiledProgram(changed, device)(*arrays)
                results = got if isinstance(got, tuple) else (got,)
                right = all(np.array_equal(g, w) for g, w in zip(results, want, strict=True))
            except Exception as e:
                return type(e).__name__
            finally:
                os.dup2(saved, 2)
                os.close(saved)
            log.seek(0)
            said = log.read().decode(errors="replace")
        for word in ("data race", "Uninitialized", "Invalid read", "Invalid write", "divergence"):
            if word in said:
                return word
        return "nothing" if right else "wrong result"

    if (before := outcome(source.text)) != "nothing":
        print(f"false alarm {before}\tunchanged")
        return
    found = list(variants(source.text))
    for what, text in found[:: max(1, len(found) // each)]:
        print(f"{outcome(text)}\t{what}", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    child(sys.argv[1], int(sys.argv[2]))
