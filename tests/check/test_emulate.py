"""The CUDA text itself, run on the CPU: what it computes, what is wrong with it, and what it asks of memory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import emulate as emulating
from tensorir.check.emulate import Emulated, Traffic, emulate

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
CLANG = shutil.which("clang++") or shutil.which("clang++-19")
CONFIG = dict(ti=8, tj=8, ri=4, rj=4, bk=8, vector=4, fragments=1, depth=1, splits=1)


def scheduled() -> tir.Schedule:
    return tir.ops.matmul(m=33, n=36, k=19).schedule(CONFIG, "gpu_tile", "cuda")


def run(edit: Callable[[str], str] = str, seed: int = 0) -> tuple[Emulated, np.ndarray]:
    """The matmul with an edited text, and what it should give."""
    source = scheduled().emitted("cuda")
    text = edit(source.text)
    assert edit is str or text != source.text
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (33, 19)).astype("float32"), rng.integers(-3, 4, (19, 36)).astype("float32")
    return emulate(replace(source, text=text), [a, b], seed), a @ b


def test_emitted_text_computes_what_was_declared() -> None:
    verdict = scheduled().check("emulate")
    assert verdict, verdict
    assert len(verdict.shapes) >= 2


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_threads_gives_the_same(seed: int) -> None:
    got, want = run(seed=seed)
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], want)


def test_a_changed_index_in_the_text_is_wrong() -> None:
    s = scheduled()
    text = s.source().replace("threadIdx.x", "0", 1)
    assert text != s.source()
    assert not s.with_source(text).check("emulate")


def without(n: int) -> Callable[[str], str]:
    """The text with its n-th barrier left out."""

    def edit(text: str) -> str:
        parts = text.split("__syncthreads();")
        assert len(parts) > n + 1
        return "__syncthreads();".join(parts[: n + 1]) + ";" + "__syncthreads();".join(parts[n + 1 :])

    return edit


def before_first_barrier(words: str) -> Callable[[str], str]:
    return lambda text: text.replace("__syncthreads();", words + " __syncthreads();", 1)


PLANTED: dict[str, tuple[str, Callable[[str], str]]] = {
    "nothing between filling and reading": ("race.shared", without(0)),
    "nothing between reading and filling again": ("race.shared", without(1)),
    "a tile that is not filled": (
        "memory.uninitialised",
        lambda t: t.replace("a_shared[a_shared_at", "if (0) a_shared[a_shared_at"),
    ),
    "results behind the end": (
        "memory.out-of-bounds",
        lambda t: t.replace("const int c_at = ", "const int c_at = 1188 + "),
    ),
    "results far away": (
        "memory.out-of-bounds",
        lambda t: t.replace("const int c_at = ", "const long c_at = 1ll << 40; //"),
    ),
    "reads in front of shared memory": (
        "memory.out-of-bounds",
        before_first_barrier("if (a_shared[-300] + b_shared[-300] == 77) c[0] = 1;"),
    ),
    "shared memory left": ("memory.out-of-bounds", before_first_barrier("a_shared[1 << 20] = 1;")),
    "all results in one place": ("launch.unwritten", lambda t: t.replace("const int c_at = ", "const int c_at = 0 * ")),
    "a barrier for some": ("barrier.divergent", before_first_barrier("if (threadIdx.x < 7)")),
    "results read by others": ("race.global", before_first_barrier("c[threadIdx.x] = 1; c[0] += c[5];")),
    "other values in one place": ("race.global", before_first_barrier("c[4] = threadIdx.x;")),
    "other values of each block": ("race.global", before_first_barrier("c[4] = blockIdx.x + blockIdx.y;")),
    "results read that nobody wrote": (
        "memory.uninitialised",
        before_first_barrier("if (blockIdx.x + threadIdx.x == 0) c[1] = c[9];"),
    ),
    "sums that no register is for": (
        "memory.out-of-bounds",
        lambda t: t.replace("c_register[init_i", "c_register[64 + init_i"),
    ),
    "an input written": ("launch.input-written", before_first_barrier("((float *)a)[0] = 1;")),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_told_with_their_line(name: str) -> None:
    code, edit = PLANTED[name]
    got, _ = run(edit)
    told = [p for p in got.problems if p.code == code]
    assert told, got.problems
    if code != "launch.unwritten" and shutil.which("addr2line"):
        assert re.search(r"line \d+ of the text", told[0].message)


def test_equal_values_in_one_place_are_no_race() -> None:
    x = tir.placeholder((8,), name="x")
    s = tir.Schedule(tir.compute((8,), lambda i: x[i], "y"), target="cuda")
    _, inner = s.split("y.i", [None, 4])
    s.bind(inner, "thread.x")
    source = s.emitted()
    for value, problems in (("3.0f", set()), ("x[threadIdx.x]", {"race.global"})):
        text = source.text.replace("  for (", f"  y[0] = {value}; y[0] = 3.0f;\n  for (", 1)
        got = emulate(replace(source, text=text), [np.full(8, 3, "float32") if not problems else np.arange(8.0)])
        assert {p.code for p in got.problems} == problems, got.problems


def test_what_only_later_turns_read_is_not_read_before() -> None:
    """A compiler that keeps a cell in a register for the length of a loop would."""
    x, r = tir.placeholder((2, 4), name="x"), tir.reduce_axis(4, name="r")
    s = tir.Schedule(tir.compute((2,), lambda i: tir.sum(tir.maximum(x[i, r], 0), axis=r), "y"), target="cuda")
    s.split("y.r", [5, None])
    s.stage_in(x, at="y.r.0", scope="global")
    s.stage_out("y", at="y.r.0", scope="global")
    verdict = s.check("emulate")
    assert verdict, verdict


def test_more_shared_memory_than_a_block_has_is_told() -> None:
    s = tir.Schedule(tir.ops.matmul(m=64, n=64, k=512).outputs, target="cuda")
    s.split("c.i", [None, 64])
    s.bind("c.i.0", "block.x").bind("c.i.1", "thread.x")
    s.target = tir.Target.parse("cuda -shared_optin_bytes=262144")
    s.stage_in("a", at="c.i.0", scope="shared")
    s.stage_in("b", at="c.i.0", scope="shared")
    s.target = tir.Target.parse("cuda")
    verdict = s.check("emulate")
    assert [p.code for p in verdict.problems] == ["compile.shared-memory"]
    assert "262144 bytes" in str(verdict)


def test_large_arrays_of_a_thread() -> None:
    """As many bytes as a GPU gives a thread have their place; more are refused, where the process would end."""
    rows = 200
    x = tir.placeholder((rows, 256), name="x")
    s = tir.Schedule(tir.compute((rows, 256), lambda i, j: x[rows - 1 - i, j], "y"), target="cuda")
    s.split("y.i", [1, None])
    s.stage_in(x, at="y.i.0", scope="register")
    source, given = s.emitted(), np.arange(rows * 256, dtype=np.float32).reshape(rows, 256)
    assert f"[{rows * 256}];" in source.text
    got = emulate(source, [given])
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], given[::-1])
    larger = source.text.replace(f"[{rows * 256}];", "[153600];")
    assert larger != source.text
    with pytest.raises(tir.CheckError, match=r"emulate\.own-memory"):
        emulate(replace(source, text=larger), [given])


def test_a_fault_makes_the_verdict_false_though_the_results_are_right() -> None:
    s = scheduled()
    parts = s.source().split("__syncthreads();")
    verdict = s.with_source("__syncthreads();".join(parts[:2]) + ";" + "__syncthreads();".join(parts[2:])).check(
        "emulate"
    )
    assert [p.code for p in verdict.problems] == ["race.shared"] * len(verdict.problems)
    assert verdict.problems


def test_what_requests_cost() -> None:
    """One warp along a row, along a column of a row of 32 words, and of a row of 33."""
    found = {}
    for pad in (0, 1):
        x = tir.placeholder((32, 32), name="x")
        s = tir.Schedule(tir.compute((32, 32), lambda i, j: x[j, i] + 1, "y"), target="cuda")
        whole, _ = s.split("y.i", [1, None])
        s.bind("y.j", "thread.x").stage_in("x", at=whole, scope="shared", pad=pad)
        got = emulate(s.emitted(), [np.arange(1024, dtype="float32").reshape(32, 32)])
        assert not got.problems
        found[pad] = {g.what: g for g in got.traffic}
    assert found[0]["global read"] == Traffic(found[0]["global read"].line, "global read", 4, 32, 1024, 128, 128)
    assert found[0]["shared write"].units == found[0]["shared write"].ideal == 32
    assert (found[0]["shared read"].units, found[0]["shared read"].ideal) == (1024, 32)
    assert found[1]["shared read"].units == 32


def test_lanes_that_skip_a_read_have_no_part_in_its_request() -> None:
    """In turn ``t`` the lanes from 3 - t on read row ``t``: first reads are of four rows, and of four requests."""
    x, t = tir.placeholder((4, 32), name="x"), tir.reduce_axis(4, name="t")
    y = tir.compute((32,), lambda i: tir.sum(tir.where(i + t >= 3, x[t, i], 0), axis=t), name="y")
    s = tir.Schedule(y, target="cuda")
    s.bind("y.i", "thread.x")
    got = emulate(s.emitted(), [np.arange(128, dtype="float32").reshape(4, 32)])
    (read,) = (g for g in got.traffic if g.what == "global read" and g.lanes < 128)  # others are of y
    assert (read.requests, read.lanes, read.units, read.ideal) == (4, 29 + 30 + 31 + 32, 16, 16)


def test_requests_are_told_apart_in_loops_that_lanes_leave_early() -> None:
    """Lane ``i`` leaves the inner loop after turn ``i``, and is in turn 0 of the next one when others are."""
    x, t = tir.placeholder((4, 4, 32), name="x"), tir.reduce_axis(4, name="t")
    u = tir.reduce_axis(4, name="u")
    s = tir.Schedule(tir.compute((32,), lambda i: tir.sum(x[t, u, i], axis=(t, u)), name="y"), target="cuda")
    s.bind("y.i", "thread.x")
    source = s.emitted()
    text = re.sub(r"(for \(int (u\w*) = 0; \w+ < 4)", r"\1 && \2 <= (int)threadIdx.x", source.text)
    assert text != source.text
    got = emulate(replace(source, text=text), [np.zeros((4, 4, 32), "float32")])
    found = {(g.requests, g.lanes, g.units, g.ideal) for g in got.traffic if g.what == "global read"}
    assert found == {(16, 4 * sum(32 - n for n in range(4)), 64, 64)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "int8", "float64", "int64"])
def test_every_type(dtype: str) -> None:
    """Neighbours in a word of shared memory belong to different threads."""
    x = tir.placeholder((64,), dtype, name="x")
    s = tir.Schedule(tir.compute((64,), lambda i: x[63 - i] + x[i], "y"), target="cuda")
    outer, inner = s.split("y.i", [1, 64])
    s.bind(inner, "thread.x").stage_in("x", at=outer, scope="shared")
    verdict = s.check("emulate")
    assert verdict, verdict


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_scalars(dtype: str) -> None:
    x, factor = tir.placeholder((8,), dtype, name="x"), tir.scalar("factor", dtype)
    s = tir.Schedule(tir.compute((8,), lambda i: x[i] * factor, name="y"), "cuda")
    assert s.check("emulate")


def test_vectors_at_no_multiple_of_their_size() -> None:
    """Which a processor forgives and a GPU does not."""
    x = tir.placeholder((64,), name="x")
    s = tir.Schedule(tir.compute((64,), lambda i: x[i] * 2, "y"), target="cuda")
    _, inner, lanes = s.split("y.i", [None, 4, 4])
    s.bind(inner, "thread.x").vectorize(lanes)
    source = s.emitted()
    text = source.text.replace("(float4 *)(y + i_0", "(float4 *)(y + 1 + i_0", 1)
    assert text != source.text
    for edited, told in ((source.text, []), (text, ["memory.misaligned"])):
        got = emulate(replace(source, text=edited), [np.arange(64, dtype="float32")])
        assert [p.code for p in got.problems if p.code != "launch.unwritten"] == told, got.problems


def copied(x: tir.Tensor, element: str = "float32") -> tir.Schedule:
    s = tir.Schedule(tir.compute((8,), lambda i: tir.cast(x[i], element), "y"), target="cuda")
    _, inner = s.split("y.i", [None, 4])
    return s.bind(inner, "thread.x")


@pytest.mark.parametrize(("other", "others"), [(7, 7), (1, 6)])  # an infinity at 7, NaNs at 1 and 2
def test_infinities_must_not_spread(other: int, others: int) -> None:
    s = copied(tir.placeholder((8,), name="x"))
    edited = s.source().replace("x[i_0 * 4 + i_1]", f"x[i_0 * 4 + i_1] + 0.0f * x[{other}]")
    assert edited != s.source()
    verdict = s.with_source(edited).check("emulate")
    assert [p.code for p in verdict.problems] == ["check.infinity-spreads"]
    told = rf"y\[0\] is nan, the declaration says -?\d: .*\({others} of 8 do\)"
    assert re.search(told, verdict.problems[0].message)


def test_infinities_that_become_whole_numbers_show_nothing() -> None:
    assert copied(tir.placeholder((8,), name="x"), "int32").check("emulate")
    assert copied(tir.placeholder((8,), "int32", name="x")).check("emulate")


def test_sizes_of_whole_numbers_of_64_bits() -> None:
    x = tir.placeholder((4,), "int64", name="x")
    s = tir.Schedule(tir.compute((4,), lambda i: tir.abs(x[i]), "y"), target="cuda")
    s.bind("y.i", "thread.x")
    got = emulate(s.emitted(), [np.array([-(2**40), 2**33, -(2**31), -1])])
    np.testing.assert_array_equal(got.outputs[0], [2**40, 2**33, 2**31, 1])


def test_text_may_call_what_cuda_has_besides_c() -> None:
    x = tir.placeholder((4,), name="x")
    s = tir.Schedule(tir.compute((4,), lambda i: x[i] * 2, "y"), target="cuda")
    s.bind("y.i", "thread.x")
    source = s.emitted()
    text = source.text.replace("* 2.0f", "* exp10f(min(max(2, 1), 5) - 1)")
    assert text != source.text
    got = emulate(replace(source, text=text), [np.arange(4, dtype="float32")])
    np.testing.assert_array_equal(got.outputs[0], [0, 10, 20, 30])


def test_text_that_does_not_compile_is_a_compile_error() -> None:
    s = scheduled()
    with pytest.raises(tir.CompileError) as caught:
        s.with_source(s.source().replace("float c", "flaot c", 1)).check("emulate")
    assert caught.value.code == "emulate.compile"


@pytest.mark.parametrize(("ta", "tb", "config"), [
    (False, False, {}), (True, True, {}), (True, False, {"bk": 16}), (False, True, {"bk": 16}),
    (False, False, {"ti": 8, "tj": 32}), (True, True, {"ti": 8, "tj": 32}),
    (True, False, {"ri": 16, "rj": 8, "tj": 8}), (False, True, {"ri": 16, "rj": 8, "tj": 8}),
])  # fmt: skip
def test_matmul_has_no_bank_conflicts_and_loads_whole_sectors(ta: bool, tb: bool, config: dict[str, int]) -> None:
    work = tir.ops.matmul(m=256, n=256, k=64, ta=ta, tb=tb)
    source = work.schedule({**work.templates["gpu_tile"].space.default, **config}, "gpu_tile", "cuda").emitted()
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (256, 64)).astype("float32"), rng.integers(-3, 4, (64, 256)).astype("float32")
    got = emulate(source, [np.ascontiguousarray(a.T) if ta else a, np.ascontiguousarray(b.T) if tb else b])
    assert not got.problems
    np.testing.assert_array_equal(got.outputs[0], a @ b)
    reads = [t for t in got.traffic if t.what == "shared read"]
    assert {t.width for t in reads} == {16}
    for t in got.traffic:
        assert t.units == t.ideal or t.what == "global write", t


@pytest.mark.skipif(not CLANG, reason="no Clang")
def test_kernels_of_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which calls hooks of its own for memory that it fills and copies."""
    emulating._program()
    for name in ("_accepts", "_compiled"):  # what they keep is another compiler's
        monkeypatch.setattr(emulating, name, getattr(emulating, name).__wrapped__)
    monkeypatch.setattr(emulating, "_compiler", lambda: CLANG)
    A = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: A[i] * 3, name="B"), target="cuda")
    outer, inner = s["B"].split("i", [None, 32])
    s.bind(outer, "block.x").bind(inner, "thread.x")
    assert s.check("emulate")
    text = s.source().replace("A[i_0", "A[1 + i_0", 1)
    assert text != s.source()
    assert "memory.out-of-bounds" in {p.code for p in s.with_source(text).check("emulate").problems}
