"""What the catalogue of error codes is made of."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """What an error code means, a few lines that meet it, and the same lines put right.

    ``wrong`` and ``right`` are Python after PRELUDE (then tests run them: the wrong one must meet its code, the right
    one must not raise), or words that start with ``#`` or ``$`` where the error comes from the machine or from files.
    """

    meaning: str
    wrong: str
    right: str

    @property
    def runs(self) -> bool:
        """Whether both examples are Python that can be tried anywhere."""
        return not any(code.startswith(("#", "$")) for code in (self.wrong, self.right))


PRELUDE = """\
import numpy as np
import tensorir as tir

A = tir.placeholder((100, 64), name="A")
B = tir.placeholder((64, 48), name="B")
k = tir.reduce_axis(64, name="k")
C = tir.compute((100, 48), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")  # C = A @ B
R = tir.compute((100, 48), lambda i, j: tir.maximum(C[i, j], 0), name="R")  # reads C
a, b = np.ones((100, 64), "float32"), np.ones((64, 48), "float32")
s = tir.Schedule(C)  # the loops C.i, C.j, C.k
t = tir.Schedule(R)  # those, and R.i, R.j
"""
"""What the examples start from."""
