"""Functions in the text of Hopper kernels: barriers, tensor copies, asynchronous products (PTX ISA 8)."""

from __future__ import annotations

import re

_CVTA = "(unsigned)__cvta_generic_to_shared"
_FUNCTION = "#ifndef TIR_EMULATED\n{template}static __device__ __forceinline__ {head} {{\n{body}\n}}\n#endif"


def _void(head: str, asm: str, operands: str = "", template: str = "", memory: bool = True) -> str:
    clobbered = ' : "memory"' if memory else ""
    body = f'  asm volatile("{asm}" :: {operands}{clobbered});'
    return _FUNCTION.format(template=template, head=f"void {head}", body=body)


_PENDING = "template <int pending> "
_N = "template <int n> "
_BAR = f'"r"({_CVTA}(barrier))'

TEXTS = {
    "TirTensorMap": (
        "#ifndef TIR_EMULATED\nstruct __align__(64) TirTensorMap { unsigned long long words[16]; };\n#endif"
    ),
    "tir_barrier_init": _void(
        "tir_barrier_init(unsigned long long *barrier, int arrivals)",
        "mbarrier.init.shared::cta.b64 [%0], %1;", f'{_BAR}, "r"(arrivals)',
    ),
    "tir_barriers_ready": _void("tir_barriers_ready()", "fence.mbarrier_init.release.cluster;"),
    "tir_barrier_expect": _void(
        "tir_barrier_expect(unsigned long long *barrier, int bytes)",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", f'{_BAR}, "r"(bytes)',
    ),
    "tir_barrier_arrive": _void(
        "tir_barrier_arrive(unsigned long long *barrier)", "mbarrier.arrive.shared::cta.b64 _, [%0];", _BAR
    ),
    "tir_barrier_wait": _void(
        "tir_barrier_wait(unsigned long long *barrier, int parity)",
        '{\\n.reg .pred p;\\nWAIT_%=:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\\n"\n'
        '               "@p bra DONE_%=;\\nbra WAIT_%=;\\nDONE_%=:\\n}', f'{_BAR}, "r"(parity)',
    ),
    "tir_barrier_arrive_at": _void(
        "tir_barrier_arrive_at(unsigned long long *barrier, int rank)",
        '{\\n.reg .b32 there;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"\n'
        '               "mbarrier.arrive.shared::cluster.b64 _, [there];\\n}', f'{_BAR}, "r"(rank)',
    ),
    "tir_sync_cluster": _void(
        "tir_sync_cluster()", "barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;"
    ),
    # orders no memory but what tir_barriers_ready did before: a release makes each thread wait for its stores (MEMBAR)
    "tir_meet_cluster": _void(
        "tir_meet_cluster()", "barrier.cluster.arrive.relaxed;\\nbarrier.cluster.wait.acquire;"
    ),
    "tir_async_fence": _void("tir_async_fence()", "fence.proxy.async.shared::cta;"),
    "tir_wgmma_fence": _void("tir_wgmma_fence()", "wgmma.fence.sync.aligned;"),
    "tir_wgmma_commit": _void("tir_wgmma_commit()", "wgmma.commit_group.sync.aligned;"),
    "tir_wgmma_wait": _void("tir_wgmma_wait()", "wgmma.wait_group.sync.aligned %0;", '"n"(pending)', _PENDING),
    "tir_hold": (
        "#ifndef TIR_EMULATED  // accesses of these registers stay on their side of it\n"
        "template <class T, int n> static __device__ __forceinline__ void tir_hold(T (&r)[n]) {\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < n * (int)sizeof(T) / 4; ++i)\n"
        '    asm volatile("" : "+r"(((unsigned *)r)[i]) :: "memory");\n'
        "}\n"
        "template <int n> static __device__ __forceinline__ void tir_hold(float (&r)[n]) {\n"
        "#pragma unroll\n"
        '  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(r[i]) :: "memory");\n'
        "}\n#endif"
    ),
    "tir_commit_stores": _void("tir_commit_stores()", "cp.async.bulk.commit_group;"),
    "tir_wait_stores": _void("tir_wait_stores()", "cp.async.bulk.wait_group.read %0;", '"n"(pending)', _PENDING),
    "tir_registers_up": _void(
        "tir_registers_up()", "setmaxnreg.inc.sync.aligned.u32 %0;", '"n"(n)', _N, memory=False
    ),
    "tir_registers_down": _void(
        "tir_registers_down()", "setmaxnreg.dec.sync.aligned.u32 %0;", '"n"(n)', _N, memory=False
    ),
    "tir_sync_some": _void("tir_sync_some(int id, int threads)", "bar.sync %0, %1;", '"r"(id), "r"(threads)'),
    # start >> 4 in bits 0 to 13, then the byte offsets >> 4 at 16 and 32, and the swizzling mode at 62: 1 is 128 bytes
    "tir_descriptor": (
        "#ifndef TIR_EMULATED\n"
        "static __device__ __forceinline__\n"
        "unsigned long long tir_descriptor(const void *p, int leading, int stride) {\n"
        f"  return (unsigned long long)(({_CVTA}(p) & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |\n"
        "         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;\n"
        "}\n#endif"
    ),
}  # fmt: skip
"""Functions and types by name; the emulator has its own."""


def hopper_text(name: str) -> str | None:
    """The definition of a function or type of this module."""
    if name in ("tir_tma_load_pixels", "tir_tma_multicast_pixels"):
        return _pixels_text(several=name == "tir_tma_multicast_pixels")
    if (copies := re.fullmatch(r"tir_tma_(load|store|multicast)_(\d)", name)) is None:
        return TEXTS.get(name)
    places = range(int(copies[2]))
    parameters = "".join(f", int c{n}" for n in places)
    given = "".join(f', "r"(c{n})' for n in places)
    if copies[1] == "store":
        at = ", ".join(f"%{n + 2}" for n in places)
        return _void(
            f"tir_tma_store(const TirTensorMap *map, const void *from{parameters})",
            f"cp.async.bulk.tensor.{len(places)}d.global.shared::cta.tile.bulk_group [%0, {{{at}}}], [%1];",
            f'"l"((unsigned long long)map), "r"({_CVTA}(from)){given}',
        )
    if copies[1] == "multicast":
        at = ", ".join(f"%{n + 4}" for n in places)
        return _void(
            f"tir_tma_multicast(void *to, const TirTensorMap *map, unsigned long long *barrier, int mask{parameters})",
            f'cp.async.bulk.tensor.{len(places)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"\n'
            f'               ".multicast::cluster [%0], [%1, {{{at}}}], [%2], %3;',
            f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}, "h"((unsigned short)mask){given}',
        )
    at = ", ".join(f"%{n + 3}" for n in places)
    head = f"tir_tma_load(void *to, const TirTensorMap *map, unsigned long long *barrier{parameters})"
    return _void(
        head,
        f'cp.async.bulk.tensor.{len(places)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"\n'
        f'               " [%0], [%1, {{{at}}}], [%2];',
        f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}{given}',
    )


def _pixels_text(several: bool) -> str:
    """The copy of pixels of images (im2col mode), for one block or for several of a cluster."""
    mask, first = (", int mask", 4) if several else ("", 3)
    name = "tir_tma_im2col_multicast" if several else "tir_tma_im2col"
    at = ", ".join(f"%{first + n}" for n in range(4))
    offset = ", ".join(f"%{first + 4 + n}" for n in range(2))
    to_all, given = ("", "") if not several else (".multicast::cluster", ', "h"((unsigned short)mask)')
    return _void(
        f"{name}(void *to, const TirTensorMap *map, unsigned long long *barrier{mask}, int c, int w, int h, int n,\n"
        "    int along_w, int along_h)",
        'cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"\n'
        f'               "{to_all} [%0], [%1, {{{at}}}], [%2], {{{offset}}}{", %3" if several else ""};',
        f'"r"({_CVTA}(to)), "l"((unsigned long long)map), {_BAR}{given}, "r"(c), "r"(w), "r"(h), "r"(n),\n'
        '               "h"((unsigned short)along_w), "h"((unsigned short)along_h)',
    )
