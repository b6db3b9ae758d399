"""Blocks that store equal values at the same places: those of a split whose last tile is moved back."""

from __future__ import annotations

from math import prod

from tensorir.ir.build import as_expr
from tensorir.ir.dims import most
from tensorir.ir.tree import Binary, Scope, Store, Var
from tensorir.ir.visit import find
from tensorir.lower.kernel import Kernel

MEETS = """\
/* Blocks store equal values where they meet: in C a race, which the thread sanitizer is not to report. */
#ifndef TIR_MEETS
#if defined(__has_feature)
#define TIR_HAS(x) __has_feature(x)
#else
#define TIR_HAS(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || TIR_HAS(thread_sanitizer)
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define TIR_MEETS(call) \\
  (AnnotateIgnoreWritesBegin(__FILE__, __LINE__), (call), AnnotateIgnoreWritesEnd(__FILE__, __LINE__))
#else
#define TIR_MEETS(call) (call)
#endif
#endif"""
"""Nothing of such a kernel is reported then. Plain stores they stay: vectors have no atomic ones."""


def blocks_meet(k: Kernel) -> bool:
    """Whether two blocks of a kernel store at the same places, which are the same values then (``Store.repeats``)."""
    blocks = {axis.var for axis in k.axes}
    moved = (
        m
        for s in find(k.body, Store)
        if s.repeats and s.buffer.scope is Scope.GLOBAL
        for index in s.index
        for m in find(index, Binary)
    )
    return prod(most(as_expr(n)) for n in k.grid) > 1 and any(
        m.op == "min" and blocks & set(find(m, Var)) for m in moved
    )
