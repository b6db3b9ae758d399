"""Why mutants are no faults: each reason, and harmful siblings that it does not excuse."""

import shutil
import time

import cuda_judge
import numpy as np
import pytest
from cuda_hopper_reasons import ALONE, SOONER, of_roles
from cuda_judge import apart
from cuda_own_arrays import followed
from cuda_reasons import ORDER, TERMS, explain
from cuda_texts import Edit, parts
from hopper_texts import source

from tensorir.check.emulate import emulate
from tensorir.codegen.source import KernelLaunch

FUNCTIONS = """
static __device__ void tir_sync_some(int id, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(id)); }
static __device__ void tir_barrier_init(int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"); }
"""
KERNEL = """
extern "C" __global__ void k(float *out)
{
  tir_sync_some(1, 256);
  tir_sync_some(3, 128);
  U[13] = 0.5f * W[9] + 0.5f * W[10] - W[i + 1] * V;
  __syncthreads();
  tir_sync_some(1, 256);
}
"""
TEXT = FUNCTIONS + KERNEL


class Tells:
    """A trial that notices something in runs with one seed only."""

    class source:
        text = TEXT

    def __init__(self, seed):
        self.seed = seed

    def run(self, text, seed=0):
        return ("emulator", "race.shared") if seed == self.seed else None


def changed(old, new, text=TEXT, kind="index, numbers exchanged"):
    at = text.index(old)
    return Edit(kind, at, at + len(old), new)


def test_barriers_may_have_a_number_of_their_own():
    def reason(new, old=TEXT, seed=None):
        return of_roles("index by one", [old], [new], [Tells(seed)])

    for number in ("2", "15"):
        assert reason(TEXT.replace("some(1,", f"some({number},", 1)) == ALONE
    other = TEXT.replace("some(1,", "some(2,", 1)
    assert reason(other, seed=3) is None, "with a number for each place some threads wait forever"
    for harmful in (
        TEXT.replace("some(1,", "some(3,", 1),  # which is taken
        TEXT.replace("some(3,", "some(1,"),
        TEXT.replace("some(1,", "some(0,", 1),  # the whole block's
        TEXT.replace("some(1,", "some(16,", 1),
        TEXT.replace("some(1,", "some(turn,", 1),  # one for each role, perhaps
        other.replace("256", "128", 1),
        other.replace("W[10]", "W[11]"),
    ):
        assert reason(harmful) is None, harmful
    taken = 'asm volatile("barrier.sync 2;");'
    assert reason(taken + other, taken + TEXT) is None
    turns = TEXT.replace("some(3,", "some(turn + 1,")
    assert reason(turns.replace("some(1,", "some(2,", 1), turns) is None


def test_waits_may_come_sooner_than_arrivals():
    wait, arrival, store = (
        "tir_wait_stores<0>();\n",
        "if (lane < 1) {\ntir_barrier_arrive(&empty[0]);\n}\n",
        "x[0] = 1;\n",
    )

    def reason(old, new):
        texts = [[TEXT.replace("  __syncthreads();\n", lines)] for lines in (old, new)]
        return of_roles("moved wait for stores", *texts, [Tells(None)])

    assert reason(arrival + wait, wait + arrival) == SOONER
    assert reason(wait + arrival, arrival + wait) is None, "later"
    assert reason(store + wait, wait + store) is None
    assert reason(arrival + store + wait, wait + arrival + store) is None
    assert reason(arrival + wait, wait + arrival.replace("0", "1")) is None


def test_terms_of_a_sum_may_change_places():
    old = "0.5f * W[9] + 0.5f * W[10] - W[i + 1] * V"
    for new in ("0.5f * W[10] + 0.5f * W[9] - W[i + 1] * V", "W[9] * 0.5f - V * W[i + 1] + 0.5f * W[10]"):
        assert explain([changed(old, new)], [Tells(0)]) == TERMS
    for harmful in (
        "0.5f * W[9] + 0.5f * W[9] - W[i + 1] * V",
        "0.5f * W[9] + W[i + 1] * V - 0.5f * W[10]",  # with another sign
        "0.5f * W[9] - 0.5f * W[10] + W[i + 1] * V",
        "0.5f * W[9] + 0.5f * V - W[i + 1] * W[10]",
        "0.5f * W[9] + (0.5f * W[10] - W[i + 1] * V)",  # other intermediate results
        "0.5f * W[9] + 0.5f * W[10] - W[i + 2] * V",
    ):
        assert explain([changed(old, harmful)], [Tells(0)]) != TERMS, harmful
    assert explain([changed("U[13]", "U[12]")], [Tells(0)]) != TERMS


@pytest.mark.parametrize("kind", ["moved barrier", "dropped barrier", "dropped barrier of a role"])
def test_barriers_that_order_nothing(kind):
    edit = changed("__syncthreads();", ";", kind=kind)
    assert explain([edit], [Tells(None)]) == ORDER
    for seed in range(1, 6):
        assert explain([edit], [Tells(seed)]) is None, "a race in one order of threads"
    assert explain([changed("U[13]", "U[12]", kind="the other barrier")], [Tells(3)]) != ORDER


def test_expressions_have_whole_brackets():
    text = ";x = a[f(1) + b[2]] + c[3];"
    at = text.index("2]] + c[3")
    assert [text[slice(*p)] for p in parts(text, at, at + len("2]] + c[3"))] == ["a[f(1) + b[2]] + c[3]"]
    at = text.index("1) + b[2")
    assert next(text[slice(*p)] for p in parts(text, at, at + len("1) + b[2"))) == "f(1) + b[2]"


def test_patience_is_for_computing(monkeypatch):
    def busy():
        while True:
            pass

    monkeypatch.setattr(cuda_judge, "PATIENCE", 0.05)
    assert apart(busy) == "endless"
    assert apart(lambda: time.sleep(0.1)) is None


def test_exceptions_are_told_by_their_names():
    assert apart(lambda: {}["no such key"]) == "raised KeyError"


OWN = """
extern "C" __global__ void k(const float *__restrict__ X, float *__restrict__ Y)
{
  const int lane = threadIdx.x;
  __align__(16) float own[4];
  for (int i = 0; i < 2; ++i)
    *(float2 *)(own + i * 2) = *(const float2 *)(X + lane * 4 + i * 2);
  for (int j = 0; j < 4; ++j)
    Y[lane * 4 + j] = own[j] * 2.0f;
}
"""
OTHERWISE = (
    OWN.replace("own[4]", "own[16]").replace("own + i", "own + part * 4 + i").replace("own[j", "own[part * 4 + j")
)
OTHERWISE = OTHERWISE.replace("part", "lane % 4")
TURNED = OTHERWISE.replace("+ i * 2) =", "+ 2 - i * 2) =").replace("+ j] *", "+ (j + 2) % 4] *")


def told(new):
    """Whether elements that are all alike are told from each other."""
    launch = KernelLaunch("k", ("X", "Y"), (1, 1, 1), (32, 1, 1))
    text = followed(OWN, new)
    assert text is not None
    array = ("float32", (128,))
    run = emulate(source(text, launch, {"X": array, "Y": array}), [np.ones(128, np.float32)])
    return bool(run.problems)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_elements_of_own_arrays_are_followed():
    assert not told(OTHERWISE)
    assert not told(TURNED)
    assert told(OTHERWISE.replace("+ j] *", "+ 3 - j] *")), "others are read than were written"
    assert told(OTHERWISE.replace("+ i * 2) =", "+ i / 2) =")), "two have one number"
    assert told(OTHERWISE.replace("own[16]", "own[12]")), "there is no room for some"


def test_more_than_own_arrays_is_not_followed():
    for other in (
        OTHERWISE.replace("2.0f", "3.0f"),
        OTHERWISE.replace("X + lane * 4", "X + lane * 8"),
        OTHERWISE.replace("  for (int j", "  tir_hold(own);\n  for (int j"),
        OTHERWISE.replace("float2", "float4"),
    ):
        assert followed(OWN, other) is None, other
    handed_on = "  tir_hold(own);\n  for (int j"
    assert followed(OWN.replace("  for (int j", handed_on), OTHERWISE.replace("  for (int j", handed_on)) is None
    shared = [text.replace("  __align__(16) float", "  __shared__ float") for text in (OWN, OTHERWISE)]
    assert followed(*shared) is None, "what several threads touch"
