"""What NVIDIA's compiler makes of inline assembly, read from its machine code: opcodes, operands and their order.

Where CUDA has the same as a function (``cuda::ptx``, primitives of pipelines, conversions), both give the same code.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import device_texts
import pytest

from tensorir.errors import TensorIRError
from tensorir.runtime.cuda import compile_cubin, sass


@functools.cache
def compilers() -> str:
    """Why there are none; "" where there are."""
    try:
        sass(compile_cubin('extern "C" __global__ void k(int *x) { x[0] = 1; }', "sm_90a"))
    except TensorIRError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True)
def _needs_compilers() -> None:
    if reason := compilers():
        pytest.skip(f"needs NVRTC and nvdisasm: {reason}")


def machine_code(text: str, arch: str = "sm_90a") -> dict[str, list[str]]:
    """The instructions of each kernel, with no addresses; labels have no numbers."""
    out: dict[str, list[str]] = {}
    found: list[str] = []
    for line in sass(compile_cubin(text, arch)).splitlines():
        if section := re.match(r"//-+ \.text\.(\S+)", line.strip()):
            found = out.setdefault(section[1], [])
        elif (one := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)) and "NOP" not in one[1]:
            found.append(re.sub(r"\.L_x_\d+", "label", re.sub(r"\s+", " ", one[1])))
    return out


MAP = "const __grid_constant__ TirTensorMap m, int mask, int c0, int c1, int c2, int c3, int c4"


def _coordinates(n: int) -> tuple[str, str]:
    names = ", ".join(f"c{i}" for i in range(n))
    return names, f"const int c[] = {{{names}}}; "


def _tiles() -> dict[str, tuple[str, str, str, str]]:
    out = {}
    for n in range(1, 6):
        at, array = _coordinates(n)
        load = f"{array}p::cp_async_bulk_tensor(p::space_cluster, p::space_global, t, &m, c, s"
        out[f"load_{n}"] = f"tir_tma_load_{n}", MAP, f"tir_tma_load(t, &m, b, {at});", f"{load});"
        out[f"multicast_{n}"] = (f"tir_tma_multicast_{n}", MAP, f"tir_tma_multicast(t, &m, b, mask, {at});",
                                 f"{load}, (unsigned short)mask);")  # fmt: skip
        store = f"{array}p::cp_async_bulk_tensor(p::space_global, p::space_shared, &m, c, t);"
        out[f"store_{n}"] = f"tir_tma_store_{n}", MAP, f"tir_tma_store(&m, t, {at});", store
    return out


SAME = {
    "init": ("tir_barrier_init", "int n", "tir_barrier_init(b, n);", "p::mbarrier_init(s, n);"),
    "ready": ("tir_barriers_ready", "", "tir_barriers_ready();",
              "p::fence_mbarrier_init(p::sem_release, p::scope_cluster);"),
    "expect": ("tir_barrier_expect", "int n", "tir_barrier_expect(b, n);",
               "p::mbarrier_arrive_expect_tx(p::sem_release, p::scope_cta, p::space_shared, s, n);"),
    "arrive": ("tir_barrier_arrive", "", "tir_barrier_arrive(b);",
               "p::mbarrier_arrive(p::sem_release, p::scope_cta, p::space_shared, s);"),
    "cluster": ("tir_sync_cluster", "", "tir_sync_cluster();",
                "p::barrier_cluster_arrive(p::sem_release); p::barrier_cluster_wait(p::sem_acquire);"),
    "meeting": ("tir_meet_cluster", "", "tir_meet_cluster();",
                "p::barrier_cluster_arrive(p::sem_relaxed); p::barrier_cluster_wait(p::sem_acquire);"),
    "async_fence": ("tir_async_fence", "", "tir_async_fence();", "p::fence_proxy_async(p::space_shared);"),
    "commit_stores": ("tir_commit_stores", "", "tir_commit_stores();", "p::cp_async_bulk_commit_group();"),
    "wait_stores": ("tir_wait_stores", "", "tir_wait_stores<1>();",
                    "p::cp_async_bulk_wait_group_read(p::n32_t<1>{});"),
    **_tiles(),
    **{f"copy_{n}": (f"tir_copy_async_{n}", "const char *g", f"tir_copy_async_{n}(t, g);",
                     f"__pipeline_memcpy_async(t, g, {n});") for n in (4, 8, 16)},
    **{f"copy_{n}_of_none": (f"tir_copy_async_{n}", "const char *g", f"tir_copy_async_{n}(t, g, false);",
                             f"__pipeline_memcpy_async(t, g, {n}, {n});") for n in (4, 8, 16)},
    "commit_copies": ("tir_commit_copies", "", "tir_commit_copies();", "__pipeline_commit();"),
    "wait_copies": ("tir_wait_copies", "", "tir_wait_copies<2>();", "__pipeline_wait_prior(2);"),
    "pack": ("tir_pack_bfloat16", "const float *x, unsigned *y", "y[0] = tir_pack_bfloat16(x[0], x[1]);",
             "__nv_bfloat162 v = __floats2bfloat162_rn(x[0], x[1]); y[0] = *(unsigned *)&v;"),
    **{f"from_{kind}": (f"tir_from_float8_{kind}", "const unsigned char *x, float *y",
                        f"y[0] = tir_from_float8_{kind}(x[0]);",
                        f"__half_raw h = __nv_cvt_fp8_to_halfraw(x[0], __NV_{kind.upper()}); y[0] = __half2float(h);")
       for kind in ("e4m3", "e5m2")},
}  # fmt: skip
"""Name: helper, arguments, and what a kernel does, in our words and in CUDA's."""


def _kernels(which: int, start: str) -> str:
    body = "__shared__ unsigned long long b[2]; __shared__ __align__(128) char t[8192];"
    body += " uint64_t *s = (uint64_t *)b;" if which else ""
    return start + "".join(
        f'extern "C" __global__ void k_{name}({args}) {{ {body} {calls[which]} }}\n'
        for name, (_, args, *calls) in SAME.items()
    )


@functools.cache
def both() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    texts = device_texts.helpers()
    ours = "\n".join(dict.fromkeys([texts["TirTensorMap"], *(texts[helper] for helper, *_ in SAME.values())]))
    headers = ("cuda/ptx", "cuda_pipeline_primitives.h", "cuda_bf16.h", "cuda_fp8.h")
    theirs = "".join(f"#include <{h}>\n" for h in headers) + "namespace p = cuda::ptx;\n" + texts["TirTensorMap"]
    return machine_code(_kernels(0, ours + "\n")), machine_code(_kernels(1, theirs + "\n"))


@pytest.mark.parametrize("name", SAME)
def test_as_cuda_does_it(name: str) -> None:
    ours, theirs = both()
    assert len(ours[f"k_{name}"]) > 1 and ours[f"k_{name}"] == theirs[f"k_{name}"]


@functools.cache
def others() -> dict[str, list[str]]:
    """Kernels around what CUDA has no function for."""
    texts = device_texts.helpers()
    names = ("TirTensorMap", "tir_barrier_wait", "tir_barrier_arrive_at", "tir_registers_up", "tir_registers_down",
             "tir_sync_some", "tir_tma_load_pixels", "tir_tma_multicast_pixels", "tir_to_float8_e4m3",
             "tir_to_float8_e5m2", "tir_descriptor", "tir_max_float", "tir_min_float")  # fmt: skip
    pixels = "int c, int w, int h, int n, int along_w, int along_h"
    calls = {
        "wait": ("int n", "tir_barrier_wait(b, n);"),
        "arrive_at": ("int n", "tir_barrier_arrive_at(b, n);"),
        "some": ("int *x", "x[0] = 1; tir_sync_some(3, 256); x[1] = 2;"),
        "pixels": (f"const __grid_constant__ TirTensorMap m, {pixels}",
                   "tir_tma_im2col(t, &m, b, c, w, h, n, along_w, along_h);"),
        "pixels_multicast": (f"const __grid_constant__ TirTensorMap m, int mask, {pixels}",
                             "tir_tma_im2col_multicast(t, &m, b, mask, c, w, h, n, along_w, along_h);"),
        "to_e4m3": ("const float *x, unsigned char *y", "y[0] = tir_to_float8_e4m3(x[0]);"),
        "to_e5m2": ("const float *x, unsigned char *y", "y[0] = tir_to_float8_e5m2(x[0]);"),
        "registers": ("int *x", "if (threadIdx.y) tir_registers_up<232>(); else tir_registers_down<40>(); x[0] = 1;"),
        "max": ("const float *x, float *y", "y[0] = tir_max_float(x[0], x[1]);"),
        "min": ("const float *x, float *y", "y[0] = tir_min_float(x[0], x[1]);"),
    }  # fmt: skip
    body = "__shared__ unsigned long long b[2]; __shared__ __align__(128) char t[8192];"
    text = "\n".join(texts[n] for n in names) + "\n" + "".join(
        f'extern "C" __global__ void __launch_bounds__(384, 1) k_{n}({args}) {{ {body} {call} }}\n'
        for n, (args, call) in calls.items())  # fmt: skip
    return machine_code(text)


def of(name: str, pattern: str) -> list[str]:
    return [x for x in others()[f"k_{name}"] if re.search(pattern, x)]


def test_waiting_for_a_phase_goes_on_when_it_is_complete() -> None:
    tried, left, again = of("wait", r"PHASECHK|^@|BRA")[:3]
    assert re.fullmatch(r"SYNCS\.PHASECHK\.TRANS64\.TRYWAIT P0, \[UR\d+\], R\d+", tried)
    assert left == "@P0 EXIT" and again.startswith("BRA")


def test_arrivals_at_another_block() -> None:
    assert of("arrive_at", r"UPRMT")[0].split(", ")[1:3] == ["UR5", "0x654"]  # the rank above the offset
    assert of("arrive_at", r"SYNCS")[0].startswith("SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ")


def test_barriers_of_some_have_a_number_and_threads() -> None:
    assert of("some", r"BAR") == ["BAR.SYNC.DEFER_BLOCKING 0x3, 0x100"]


def test_registers_move_between_warpgroups() -> None:
    found = of("registers", "USETMAXREG")
    assert sorted(re.sub(r"U?P\d, ", "", x) for x in found) == [
        "USETMAXREG.DEALLOC.CTAPOOL 0x28", "USETMAXREG.TRY_ALLOC.CTAPOOL 0xe8"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_conversions_to_eight_bits_fill_the_lower_half(kind: str) -> None:
    (found,) = of(f"to_{kind}", "F2FP")
    assert re.fullmatch(rf"F2FP\.SATFINITE\.{kind.upper()}\.F32\.PACK_AB_MERGE_C R\d+, RZ, R\d+, RZ", found)


@pytest.mark.parametrize(("name", "which"), [("min", "PT"), ("max", "!PT")])
def test_extremes_of_floats_are_nan_where_one_is(name: str, which: str) -> None:
    (found,) = of(name, "FMNMX")
    assert re.fullmatch(rf"FMNMX\.NAN R\d+, R\d+, R\d+, {which}", found)


@pytest.mark.parametrize("name", ["pixels", "pixels_multicast"])
def test_copies_of_pixels(name: str) -> None:
    (found,) = of(name, "UTMALDG")
    assert ("MULTICAST" in found) == (name == "pixels_multicast") and "4D" in found and "IM2COL" in found
    first = 0x2C4 if name == "pixels_multicast" else 0x2C0  # a map of 128 bytes, (the mask,) c, w, h, n, the offsets
    code = " ".join(others()[f"k_{name}"])
    along_w, along_h = re.findall(r"ULDC\.U16 (UR\d+), c\[0x0\]\[(0x\w+)\]", code)[:2]
    assert [int(x[1], 16) for x in (along_w, along_h)] == [first + 16, first + 20]
    if name == "pixels":  # behind the places of tile and barrier, in registers 8 and 9
        assert f"ULDC.64 UR10, c[0x0][{first:#x}]" in code and f"ULDC.64 UR12, c[0x0][{first + 8:#x}]" in code
        assert "UTMALDG.4D.IM2COL [UR8]," in code
    assert f"UPRMT {along_w[0]}, {along_w[0]}, 0x40, {along_h[0]}" in code, "8 bits of each, columns first"


MMA = {
    "tir_mma_m16n8k16_f16": ["HMMA.16816.F32 d, a, b, d"],
    "tir_mma_m16n8k16_bf16": ["HMMA.16816.F32.BF16 d, a, b, d"],
    "tir_mma_m16n8k32_s8": ["IMMA.16832.S8.S8 d, a.ROW, b.COL, d"],
    "tir_mma_m16n8k32_u8": ["IMMA.16832.U8.U8 d, a.ROW, b.COL, d"],
    "tir_mma_m16n8k8_f16": ["HMMA.1688.F32 d, a, b, d"],
    "tir_mma_m16n8k16_s8": ["IMMA.8816.S8.S8 d, a.ROW, b.COL, d", "IMMA.8816.S8.S8 d+2, a+1.ROW, b.COL, d+2"],
    "tir_mma_m16n8k16_u8": ["IMMA.8816.U8.U8 d, a.ROW, b.COL, d", "IMMA.8816.U8.U8 d+2, a+1.ROW, b.COL, d+2"],
    "tir_mma_m16n8k16_f16_f16": ["HMMA.16816.F16 d, a, b, d"],
    "tir_mma_m16n8k8_f16_f16": ["HMMA.1688.F16 d, a, b, d"],
    "tir_mma_m16n8k8_tf32": ["HMMA.1688.F32.TF32 d, a, b, d"],
    "tir_mma_m16n8k32_e4m3": ["QMMA.16832.F32.E4M3.E4M3 d, a, b, d"],
    "tir_mma_m16n8k32_e5m2": ["QMMA.16832.F32.E5M2.E5M2 d, a, b, d"],
}
"""What a product becomes; d, a and b are the first registers into which the operands were loaded."""


@functools.cache
def products(arch: str) -> dict[str, list[str]]:
    texts = device_texts.instructions()
    out = ""
    for name in (*MMA, "tir_mma_m16n8k8_3xtf32"):
        if arch == "sm_89" or not name.endswith(("e4m3", "e5m2")):
            sums = "int" if re.search(r"_[su]8$", name) else "float"
            given = "const float" if "tf32" in name else "const void"
            out += (
                texts[name]
                + f"""
extern "C" __global__ void k_{name}(float4 *d, const uint4 *a, const uint4 *b) {{
  float4 v = d[0]; uint4 x = a[0], y = b[0];
  {name}(({sums} *)&v, ({given} *)&x, ({given} *)&y);
  d[0] = v;
}}
"""
            )
    return machine_code(out, arch)


def registers(code: list[str]) -> dict[str, str]:
    """Registers to the operand that was loaded into them: "d", "d+1" …; the parameters are d, a and b."""
    pointer = {m[1]: "dab"[(int(m[2], 16) - first) // 8] for first in _first(code) for x in code
               if (m := re.match(r"LDC\.64 (R\d+), c\[0x0\]\[(0x\w+)\]", x)) and int(m[2], 16) >= first}  # fmt: skip
    out = {}
    for x in code:
        if m := re.match(r"LDG\.E(\.64|\.128)?(?:\.CONSTANT)? (R\d+), desc\[UR\d+\]\[(R\d+)\.64\]", x):
            for n in range({"": 1, ".64": 2, ".128": 4}[m[1] or ""]):
                out[f"R{int(m[2][1:]) + n}"] = pointer[m[3]] + (f"+{n}" if n else "")
    return out


def _first(code: list[str]) -> list[int]:
    return [min(int(m[1], 16) for x in code if (m := re.match(r"LDC\.64 R\d+, c\[0x0\]\[(0x\w+)\]", x)))]


@pytest.mark.parametrize("name", MMA)
def test_operands_of_mma(name: str) -> None:
    arch = "sm_89" if name.endswith(("e4m3", "e5m2")) else "sm_90a"
    code = products(arch)[f"k_{name}"]
    if arch == "sm_89":  # addresses are constants there
        found = [re.sub(r" R.*", "", x) for x in code if "MMA" in x]
        assert found == [x.split(" ")[0] for x in MMA[name]]
        return
    held = registers(code)
    found = [re.sub(r"R\d+", lambda m: held.get(m[0], m[0]), x).replace(".reuse", "") for x in code if "MMA" in x]
    if name.endswith("tf32"):  # rounded in other registers, in the same order
        assert [re.sub(r" .*", "", x) for x in found] == [x.split(" ")[0] for x in MMA[name]]
    else:
        assert found == MMA[name]


def test_three_products_of_two_parts() -> None:
    code = products("sm_90a")["k_tir_mma_m16n8k8_3xtf32"]
    first, second, third = (x.replace(".reuse", "").split(", ")[1:3] for x in code if "MMA" in x)
    (small_a, big_b), (big_a, small_b) = first, second
    assert third == [big_a, big_b] and len({small_a, big_a}) == 2 and len({small_b, big_b}) == 2


@pytest.mark.parametrize(("name", "code"), [
    ("tir_ldmatrix_x4", "LDSM.16.M88.4"), ("tir_ldmatrix_x4_trans", "LDSM.16.MT88.4"),
    ("tir_stmatrix_x4", "STSM.16.M88.4"), ("tir_stmatrix_x4_trans", "STSM.16.MT88.4"),
])  # fmt: skip
def test_matrices_between_registers_and_shared_memory(name: str, code: str) -> None:
    made = "uint4 v = d[threadIdx.x]; " + (f"{name}(s, &v);" if "st" in name[:6] else f"{name}(&v, s);")
    text = (
        device_texts.instructions()[name]
        + f"""
extern "C" __global__ void k(uint4 *d) {{ __shared__ __align__(16) char s[512]; s[threadIdx.x] = 1; {made}
  __syncthreads(); v.x += s[threadIdx.x]; d[threadIdx.x] = v; }}
"""
    )
    found = [x for x in machine_code(text)["k"] if re.search("LDSM|STSM", x)]
    assert len(found) == 1 and found[0].startswith(code + " ")


WGMMA = {
    "tir_wgmma_m64n8k16_bf16_nt": "HGMMA.64x8x16.F32.BF16 R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n8k16_bf16_nn": "HGMMA.64x8x16.F32.BF16 R, gdesc[U].tnspB, R, gsb0",
    "tir_wgmma_m64n8k16_bf16_tt": "HGMMA.64x8x16.F32.BF16 R, gdesc[U].tnspA, R, gsb0",
    "tir_wgmma_m64n8k16_bf16_tn": "HGMMA.64x8x16.F32.BF16 R, gdesc[U].tnspA.tnspB, R, gsb0",
    "tir_wgmma_m64n16k16_f16_nt": "HGMMA.64x16x16.F32 R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n8k16_f16_rt": "HGMMA.64x8x16.F32 R, R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n8k16_f16_rn": "HGMMA.64x8x16.F32 R, R, gdesc[U].tnspB, R, gsb0",
    "tir_wgmma_m64n8k8_tf32_nt": "HGMMA.64x8x8.F32.TF32 R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n8k32_s8_nt": "IGMMA.64x8x32.S8.S8 R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n8k32_u8_rt": "IGMMA.64x8x32.U8.U8 R, R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n16k32_e4m3_nt": "QGMMA.64x16x32.F32.E4M3.E4M3 R, gdesc[U], R, gsb0",
    "tir_wgmma_m64n16k32_e5m2_rt": "QGMMA.64x16x32.F32.E5M2.E5M2 R, R, gdesc[U], R, gsb0",
}
"""Scale-d is 1 and nothing is negated: there would be ``!UPT`` and signs."""
COMPLETED = ("tir_wgmma_fence", "tir_wgmma_commit", "tir_wgmma_wait", "tir_hold")


@functools.cache
def groups() -> dict[str, list[str]]:
    texts, helpers = device_texts.products(), device_texts.helpers()
    out = "\n".join(helpers[h] for h in COMPLETED)
    for name in WGMMA:
        count = int(re.search(r"n(\d+)k", name)[1]) // 2
        kind = "int" if re.search(r"_[su]8_", name) else "float"
        a = "(const void *)&v" if "_r" in name else "a"
        out += (
            "\n"
            + texts[name]
            + f"""
extern "C" __global__ void __launch_bounds__(128, 1)
k_{name}({kind} *x, unsigned long long a, unsigned long long b, const uint4 *g) {{
  {kind} d[{count}]; uint4 v = g[threadIdx.x];
  for (int i = 0; i < {count}; ++i) d[i] = x[i];
  tir_hold(d); tir_wgmma_fence(); {name}(d, {a}, b); tir_wgmma_commit(); tir_wgmma_wait<0>(); tir_hold(d);
  for (int i = 0; i < {count}; ++i) x[i] = d[i];
}}
"""
        )
    return machine_code(out)


@pytest.mark.parametrize("name", WGMMA)
def test_products_of_warpgroups(name: str) -> None:
    code = groups()[f"k_{name}"]
    (found,) = [re.sub(r"\bU?R\d+\b", lambda m: m[0][0], x) for x in code if "GMMA" in x]
    assert found == WGMMA[name]
    order = [x.split(" ")[0] for x in code if re.match(r"WARPGROUP|[HIQ]GMMA", x)]
    assert order[0] == "WARPGROUP.ARRIVE" and "WARPGROUP.DEPBAR.LE" in order


@pytest.mark.parametrize("name", WGMMA)
def test_descriptors_of_products_are_those_of_a_and_of_b(name: str) -> None:
    """Behind ``gdesc`` are four registers, the two of a first; where a is in registers itself, nobody reads those."""
    code = groups()[f"k_{name}"]
    (first,) = [int(m[1]) for x in code if (m := re.search(r"gdesc\[UR(\d+)\]", x))]
    held = {int(m[1]): int(m[2], 16) for x in code if (m := re.match(r"ULDC\.64 UR(\d+), c\[0x0\]\[(0x\w+)\]", x))}
    assert held[first + 2] == 0x220  # x, a, b, g are at 0x210 and on
    assert "_r" in name or held[first] == 0x218


@pytest.mark.parametrize(("adds", "which"), [("1", ""), ("0", ", !UPT"), ("n > 3", ", UP0")])
def test_products_that_begin_a_sum(adds: str, which: str) -> None:
    helpers, name = device_texts.helpers(), "tir_wgmma_m64n8k16_bf16_nt"
    text = "\n".join((*(helpers[h] for h in COMPLETED), device_texts.products()[name]))
    text += f"""
extern "C" __global__ void k(float *x, unsigned long long a, unsigned long long b, int n) {{
  float d[4] = {{x[0], x[1], x[2], x[3]}};
  tir_hold(d); tir_wgmma_fence(); {name}(d, a, b, {adds}); tir_wgmma_commit(); tir_wgmma_wait<0>(); tir_hold(d);
  for (int i = 0; i < 4; ++i) x[i] = d[i];
}}
"""
    code = machine_code(text)["k"]
    (found,) = [x for x in code if "HGMMA" in x]
    d = found.split(" ")[1].rstrip(",")
    assert re.fullmatch(rf"HGMMA\.64x8x16\.F32\.BF16 {d}, gdesc\[UR\d+\], ({d}|RZ){which}, gsb0", found)
    if "UP0" in which:
        (made,) = [x for x in code if re.match(r"U?ISETP.* UP0,", x)]
        assert re.match(r"UISETP\.GT\.AND UP0, UPT, UR\d+, 0x3, UPT", made)


def test_every_helper_with_assembly_is_read() -> None:
    texts = {**device_texts.helpers(), **device_texts.instructions()}
    written = {name for name, text in texts.items() if re.search(r"\basm\b", text)}
    text = Path(__file__).read_text(encoding="utf-8")
    assert written - {helper for helper, *_ in SAME.values()} <= set(re.findall(r"\btir_\w+", text))
