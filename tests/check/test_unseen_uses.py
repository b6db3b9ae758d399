"""What a GPU leaves undefined and a CPU does not, or the other way round: each use in CUDA text is told."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.codegen.source import KernelLaunch, Param, Source

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
LANE = "  const int lane = threadIdx.x;\n"


def run(body: str, threads: int = 32, blocks: int = 1, kernels: int = 1, signature: str = "", text: str = ""):
    """The codes of a kernel that reads X[128] and writes Y[128] and Z[128], and what it leaves in Y."""
    bounds, arrays = f"__launch_bounds__({threads})", "const float *__restrict__ X, float *__restrict__ Y, float *Z"
    whole = f'{text}extern "C" __global__ void {bounds} k({signature or arrays})\n{{\n{body}\n}}\n'
    params = [Param(n, "float32", (128,), r) for n, r in (("X", "input"), ("Y", "output"), ("Z", "workspace"))]
    launch = KernelLaunch("k", ("X", "Y", "Z"), (blocks, 1, 1), (threads, 1, 1))
    done = emulate(Source("k", "cuda", whole, tuple(params), (launch,) * kernels), [np.arange(128, dtype=np.float32)])
    return {p.code for p in done.problems} - {"launch.unwritten"}, done.outputs[0]


@pytest.mark.parametrize("barrier", ["__syncthreads();", "tir_sync_some(1, 64);"])
def test_lanes_of_a_warp_come_to_one_barrier(barrier: str) -> None:
    for condition, codes in (("threadIdx.x % 2", {"warp.divergent"}), ("threadIdx.x < 32", set())):
        body = f"  if ({condition})\n    {barrier}\n  else\n    {barrier}\n  Y[threadIdx.x] = 1.0f;"
        assert run(body, 64)[0] == codes


def test_lanes_of_a_warpgroup_run_one_instruction() -> None:
    body = "  if (threadIdx.x % 2)\n    tir_wgmma_fence();\n  else\n    tir_wgmma_fence();\n  Y[threadIdx.x] = 1.0f;"
    assert run(body, 128)[0] == {"warp.divergent"}


@pytest.mark.parametrize("exchange", [
    "float v = __shfl_xor_sync(0xffffffffu, X[lane], 1);",
    "__align__(16) float d[4] = {0}, a[4] = {0}, b[2] = {0}; tir_mma_m16n8k16_f16(d, a, b); float v = d[0];",
])  # fmt: skip
def test_what_lanes_exchange_orders_no_memory(exchange: str) -> None:
    """CUDA C++ Programming Guide, warp shuffle functions: they do not imply a memory barrier."""
    body = f"{LANE}  __shared__ float s[32];\n  s[lane] = X[lane];\n  {exchange}\n  @Y[lane] = s[31 - lane] + v;"
    assert run(body.replace("@", ""))[0] == {"race.shared"}
    assert run(body.replace("@", "__syncwarp();\n  "))[0] == set()


@pytest.mark.parametrize(("call", "want"), [
    ("__shfl_sync(0xffffffffu, v, 33)", lambda n: 1), ("__shfl_xor_sync(0xffffffffu, v, 33)", lambda n: n ^ 1),
    ("__shfl_down_sync(0xffffffffu, v, 1)", lambda n: min(n + 1, 31)),
    ("__shfl_down_sync(0xffffffffu, v, 33)", lambda n: min(n + 1, 31)),
])  # fmt: skip
def test_five_bits_of_a_lane_count(call: str, want) -> None:
    codes, y = run(f"{LANE}  const float v = X[lane];\n  Y[lane] = {call};")
    assert not codes and y[:32].tolist() == [want(n) for n in range(32)]


def test_lanes_that_a_block_lacks_give_nothing() -> None:
    codes, y = run(f"{LANE}  const float v = X[lane];\n  Y[lane] = __shfl_down_sync(0xffffu, v, 8);", 16)
    assert not codes and y[:8].tolist() == list(range(8, 16)) and np.isnan(y[8:16]).all()


def test_blocks_do_not_write_what_others_read() -> None:
    arrays = "const float *__restrict__ X, float *__restrict__ Y, float *Z"
    for by, codes in ((32, {"race.global"}), (0, set())):
        whole = ""
        for name, statement in (("k", "Z[n] = X[n]"), ("l", f"Z[n] = Z[(n + {by}) % 128]")):
            body = f"  const int n = blockIdx.x * 32 + threadIdx.x;\n  {statement};\n  Y[n] = 1.0f;"
            whole += f'extern "C" __global__ void {name}({arrays})\n{{\n{body}\n}}\n'
        params = [Param(n, "float32", (128,), r) for n, r in (("X", "input"), ("Y", "output"), ("Z", "workspace"))]
        launches = [KernelLaunch(n, ("X", "Y", "Z"), (4, 1, 1), (32, 1, 1)) for n in "kl"]
        done = emulate(Source("k", "cuda", whole, tuple(params), tuple(launches)), [np.zeros(128, np.float32)])
        assert {p.code for p in done.problems} == codes


@pytest.mark.parametrize("declared", ["float v[2]", "float v", "double v[2]", "__align__(16) float v[4]"])
def test_what_nobody_wrote_is_no_number(declared: str) -> None:
    """A product with 0 does not hide it."""
    first = "v[0]" if "[" in declared else "v"
    aligned = "  *(float4 *)(v) = *(float4 *)(v);\n" if "align" in declared else ""
    body = f"  {declared};\n{aligned}  if (threadIdx.x)\n    {first} = 1.0f;\n  Y[threadIdx.x] = {first} * X[0];"
    codes, y = run(body)
    assert not codes and np.isnan(y[0]) and not y[1:32].any()


def test_members_of_structures_are_left_alone() -> None:
    text = "struct Two {\n  float of[2];\n  float more;\n};\n"
    body = "  Two t;\n  t.of[0] = t.of[1] = t.more = X[1];\n  Y[threadIdx.x] = t.of[0] + t.of[1] + t.more;"
    codes, y = run(body, text=text)
    assert not codes and (y[:32] == 3).all()


def test_products_of_bytes_have_the_sign_of_their_operands() -> None:
    for kind, want in (("unsigned", 255), ("int", -1)):
        codes, y = run(f"  Y[threadIdx.x] = (float)__dp4a(({kind})0xff, ({kind})1, ({kind})0);")
        assert not codes and y[0] == want


@pytest.mark.parametrize(("pattern", "new"), [
    ("const float al", "const double al"), ("const float al", "const int al"), ("const float al", "const float *al"),
    ("const float al", "const float al, const float more = 1.0f"),
    (r"float \*__restrict__ y, ", "float *y, float *z, "),
])  # fmt: skip
def test_a_launch_converts_no_arguments(pattern: str, new: str) -> None:
    x, al = tir.placeholder((9, 24), name="x"), tir.scalar("al")
    y = tir.compute((9, 24), lambda i, j: x[i, j] * al, name="y")
    s = tir.Schedule(y, "cuda").bind("y.i", "block.x").bind("y.j", "thread.x")
    text, made = re.subn(pattern, new, s.source())
    assert made and s.with_source(s.source()).check("emulate")
    with pytest.raises(tir.CompileError) as told:
        s.with_source(text).check("emulate")
    assert told.value.code == "emulate.compile"
