"""The first contact with a GPU, without one: the same texts in the emulator, and what happens to processes that end."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import first_contact
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from versus_gpu import lists, pixel_probes, probes, rungs
from versus_gpu.words import word_of, words_of

from tensorir.errors import DeviceError
from tensorir.runtime import cuda

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler to emulate with")
BY_NAME = {p.name: p for p in first_contact.probes()}


@needs_compiler
def test_dry_run(tmp_path, capsys):
    out = tmp_path / "r.json"
    only = "^tma (tf32|swizzle 64|steps at|store|multicast)|^wgmma 96$|^im2col|^conv wgmma im2col 3x1"
    assert first_contact.main(["--dry", "--only", only, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert {x["name"] for x in found} == {
        "tma tf32", "tma swizzle 64", "tma steps at the edge", "tma store", "tma multicast", "wgmma 96",
        *(p.name for p in pixel_probes.PIXEL_PROBES), "conv wgmma im2col 3x1",
    }  # fmt: skip
    assert {x["outcome"] for x in found} == {"as expected"}
    assert f"{len(found)} of {len(found)} as expected" in capsys.readouterr().out


def test_every_probe_has_a_name_of_its_own(capsys):
    assert len(BY_NAME) == len(probes.PROBES) + len(pixel_probes.PIXEL_PROBES) + len(rungs.RUNGS)
    assert first_contact.main(["--list", "--only", "^tma steps$"]) == 0
    told = capsys.readouterr().out
    assert told.split(maxsplit=2)[:2] == ["tma", "steps"] and "of a box of N elements with a step s" in told


@pytest.mark.parametrize("name", ["wgmma small cluster", "wgmma in turns, cluster", "conv wgmma stride 2", "mma e4m3",
                                  "conv wgmma filter in parts"])  # fmt: skip
def test_rungs_are_what_their_templates_make(name):
    made = BY_NAME[name].make()
    assert made.source.language == "cuda" and made.want.shape == made.source.outputs[0].shape
    if "cluster" in name:
        assert "__cluster_dims__(2, 1, 1)" in made.source.text and "tir_tma_multicast" in made.source.text
    if "parts" in name:
        assert [len(k.maps) for k in made.source.kernels] == [2, 0]
        assert re.search(r"tir_tma_im2col_multicast\(\w+_shared", made.source.text)
    if "stride" in name:
        assert {m.steps for k in made.source.kernels for m in k.maps} >= {(1, 2, 2, 1)}


def test_a_result_tells_which_reading_is_true():
    made = BY_NAME["tma steps at the edge"].make()
    assert first_contact.compared(made, made.want.copy()) == "as expected"
    assert len(made.others) == 3
    for words, other in made.others.items():
        assert first_contact.compared(made, other.copy()) == f"otherwise: {words}"
    off = made.want.copy()
    off[5] ^= 1
    assert first_contact.compared(made, off).startswith(f"wrong: 1 of {off.size} elements differ, the first at 5")
    sums = BY_NAME["threads"].make()
    assert first_contact.compared(sums, np.where(sums.want == 0, -0.0, sums.want).astype(np.float32)) == "as expected"


@pytest.mark.parametrize("name", [p.name for p in pixel_probes.PIXEL_PROBES])
def test_each_reading_of_pixels_is_another_result(name):
    made = BY_NAME[name].make()
    pictures = [made.want, *made.others.values()]
    assert all(not np.array_equal(a, b) for n, a in enumerate(pictures) for b in pictures[:n])
    for words, other in made.others.items():
        assert first_contact.compared(made, other.copy()) == f"otherwise: {words}"


def test_what_fails_is_an_outcome():
    def run(source, arrays):
        raise RuntimeError("no luck")

    assert first_contact.outcome(BY_NAME["tma box"], run) == "failed: RuntimeError: no luck"


@pytest.mark.parametrize("name", ["tma steps", "tma multicast", "tma store", "im2col corners", "im2col multicast"])
def test_texts_compile(name):
    pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        cubin = cuda.compile_cubin(BY_NAME[name].make().source.text, "sm_90a")
    except DeviceError as error:
        pytest.skip(error.problems[0].message)
    assert cubin.spills == 0 and "probe" in cubin.kernels


CHILD = """
import json, os, sys, time
lines, *names = sys.argv[1:]
with open(lines, "a") as file:
    for name in names:
        print(json.dumps({"begins": name}), file=file, flush=True)
        if name == "hangs":
            time.sleep(60)
        if name == "crashes":
            os.abort()
        print(json.dumps({"name": name, "outcome": "failed" if name == "breaks" else "fine"}), file=file, flush=True)
        if name == "breaks":
            sys.exit(75)
"""


def test_probes_behind_one_that_hangs_or_ends_its_process_run_all_the_same():
    names, told, started = ["a", "hangs", "b", "crashes", "breaks", "c"], [], time.time()
    first_contact.supervise([sys.executable, "-c", CHILD], names, 1.0, told.append)
    assert time.time() - started < 40
    assert {x["name"]: x["outcome"] for x in told} == {
        "a": "fine", "hangs": "hung: nothing came for 1 s", "b": "fine",
        "crashes": "crashed: its process ended with status -6", "breaks": "failed", "c": "fine",
    }  # fmt: skip


def test_without_a_device_one_probe_is_enough():
    told = []
    child = CHILD.replace('"failed" if', '"failed: DeviceError: none" if')
    first_contact.supervise([sys.executable, "-c", child], ["breaks", "a", "b"], 5.0, told.append)
    assert [x["name"] for x in told] == ["breaks"]


def test_a_process_that_never_begins_costs_one_probe_at_a_time():
    told = []
    first_contact.supervise([sys.executable, "-c", "import sys; sys.exit(3)"], ["a", "b"], 5.0, told.append)
    assert [x["outcome"] for x in told] == ["crashed: its process ended with status 3"] * 2


BLOCKED = ("ml_dtypes", "pyopencl", "skopt", "sklearn", "scipy", "click", "rich", "torch")
ALONE = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
sys.path[:0] = sys.argv[2].split(",")
import first_contact
for probe in first_contact.probes("^(tma 16 bits|im2col 16 bits.*|mma (e4m3|bf16)|wgmma( 96| e4m3)?|conv wgmma)$"):
    made = probe.make()
    print(probe.name, *(p.dtype for p in made.source.params), made.want.dtype)
"""


def test_a_first_contact_needs_numpy_and_cupy_alone():
    paths = [str(Path(first_contact.__file__).parent), str(first_contact.ROOT)]
    command = [sys.executable, "-c", ALONE, ",".join(BLOCKED), ",".join(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "tma 16 bits int16 uint32 uint32", "im2col 16 bits, swizzled int16 uint32 uint32",
        "mma bf16 int16 int16 int16 int16", "mma e4m3 int8 int8 int16 int16", "wgmma int16 int16 int16 int16",
        "wgmma e4m3 int8 int8 int16 int16", "wgmma 96 int16 int16 int16 int16", "conv wgmma int16 int16 int16 int16",
    ]  # fmt: skip


NARROW = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("name", NARROW)
@given(st.data())
def test_words_are_those_of_the_types_that_numpy_lacks(name, data):
    most = float(ml_dtypes.finfo(NARROW[name]).max)
    drawn = data.draw(st.lists(st.floats(-most, most, width=32), min_size=1, max_size=40))
    x = np.array([*drawn, 0.0, -0.0, most, -most], np.float32)
    assert np.array_equal(words_of(x, name), x.astype(NARROW[name]).view(word_of(name)))
    every = np.arange(1 << 8 * np.dtype(NARROW[name]).itemsize).astype(f"u{np.dtype(NARROW[name]).itemsize}")
    numbers = every.view(NARROW[name]).astype(np.float32)
    finite = np.isfinite(numbers)
    assert np.array_equal(words_of(numbers[finite], name).view(every.dtype), every[finite])
    between = np.sort(numbers[finite].astype(np.float64))
    halves = ((between[1:] + between[:-1]) / 2).astype(np.float32)
    assert np.array_equal(words_of(halves, name), halves.astype(NARROW[name]).view(word_of(name)))
    with pytest.raises(ValueError, match="holds numbers up to"):
        words_of(np.array([1.01 * most]), name)


def test_the_page_counts_what_runs():
    page = (Path(first_contact.__file__).parent / "README.md").read_text(encoding="utf-8")
    told = re.search(r"runs (\d+) small kernels.*?The first (\d+) are", page, re.S)
    tiles = len(probes.PROBES) + len(pixel_probes.PIXEL_PROBES)
    assert told and [int(n) for n in told.groups()] == [len(BY_NAME), tiles]
    check, quick = (len(lists.problems(tier, None, False)) for tier in ("check", "quick"))
    assert f"| {check}, compared only |" in page
    assert f"| those, then {quick - check} timed ones" in page
