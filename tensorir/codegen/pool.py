"""C source of a thread pool that runs the blocks of kernels on a CPU."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

PROLOGUE = """\
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
"""
"""The lines before all other text: the system's headers, with Linux beyond POSIX."""


@cache
def pool_text() -> str:
    """C source of the function ``tir_run``, which runs a kernel's blocks, and of its pool of threads, which sleep
    between calls.
    """
    return files("tensorir.codegen").joinpath("pool.c").read_text(encoding="utf-8")
