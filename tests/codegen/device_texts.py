"""Every text that kernels may bring along and that a device runs otherwise than the emulator, by name."""

from __future__ import annotations

import re

from tensorir.codegen.dialect import DIALECTS, FETCH, SHARED_ARENA
from tensorir.codegen.helpers import HELPERS, TEXTS, helper_text
from tensorir.codegen.instructions import guarded
from tensorir.codegen.whole import cuda_extreme
from tensorir.intrin.cuda import MULTIPLICATIONS
from tensorir.intrin.hopper import COLUMNS, INTEGER_COLUMNS, KINDS, wgmma_of
from tensorir.intrin.intrin import INTRINSICS, intrinsic

CUDA = DIALECTS["cuda"]
PACKAGE = "tensorir"


def helpers() -> dict[str, str]:
    """Of code generation, for CUDA."""
    names = [*HELPERS, *TEXTS, *(f"tir_copy_async_{n}" for n in (4, 8, 16))]
    names += [f"tir_tma_{how}_{n}" for how in ("load", "store", "multicast") for n in range(1, 6)]
    names += ["tir_tma_load_pixels", "tir_tma_multicast_pixels"]
    extremes = {f"tir_{op}_float": cuda_extreme(op) for op in ("min", "max")}
    return {"TIR_SHARED": SHARED_ARENA, "FETCH": FETCH, **extremes, **{name: helper_text(name, CUDA) for name in names}}


def instructions() -> dict[str, str]:
    """Of the instructions in the tables but products of warpgroups, by name: which are made first is the caller's."""
    intrinsic("mma.m16n8k16.f16.nn")
    found = {}
    for i in INTRINSICS.values():
        if (text := i.prelude.get("cuda", "")) and type(i).__module__.startswith(PACKAGE) and "wgmma" not in i.name:
            names = re.findall(r"void (tir_\w+)\(", text)
            if names:  # those that tests declare have names of their own
                found[names[-1]] = guarded(text)
    return dict(sorted(found.items()))


def products() -> dict[str, str]:
    """Of products of warpgroups: every kind, order and number of columns."""
    found = {}
    for kind in KINDS:
        m = MULTIPLICATIONS[kind]
        orders = ("nt", "nn", "tt", "tn", "rt", "rn") if m.word == 2 else ("nt", "rt")
        for n in INTEGER_COLUMNS if m.sums == "int32" else COLUMNS:
            for order in orders:
                name = f"tir_wgmma_m64n{n}k{m.k}_{kind}_{order}"
                product = wgmma_of(name)
                assert product is not None, name
                found[name] = guarded(product.prelude["cuda"])
    return found
