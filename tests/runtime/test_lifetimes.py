"""What is enqueued outlives the objects that enqueued it."""

import subprocess
import sys

import pytest

SETUP = """
import gc, numpy as np, tensorir as tir
n = 1 << 20
X = tir.placeholder((n,), name="X")
P = tir.compute((n,), lambda i: tir.exp(X[i]) * 2, name="P")
Q = tir.compute((n,), lambda i: tir.exp(P[i] * 0) + P[n - 1 - i], name="Q")
s = tir.Schedule(Q, "opencl")
"""
CASES = {
    "bound launches": "s.run_once('P'); f = s.build(); x = np.ones(n, np.float32)\n"
    "for _ in range(4):\n    b = f.bind(x); b(); b(); b(); del b; gc.collect(); junk = np.ones(n, np.float32)",
    "a sequence": "f = s.build(); x = np.ones(n, np.float32)\n"
    "q = tir.sequence([f.bind(x), f.bind(x)]); q(); q(); del q; gc.collect()",
    "the interpreter": "b = s.build().bind(np.ones(n, np.float32)); b(); b()",
}


@pytest.mark.parametrize("case", CASES)
def test_dropping_it_while_kernels_run_is_safe(case):
    code = SETUP + CASES[case]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]
