"""Levels of a target: the same words of a rule for cores and threads, with the same results."""

import re
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.automatic import rules
from tensorir.automatic.levels import choices, levels_of
from tensorir.target import Target

CORES, THREADS = "c -registers=32 -vector_bytes=64 -units=4", "cuda -arch=sm_80"
ROWS = ("rows", "rows_part", "rows_along", "rows_across", "rows_split")
SCANS = ("scan", "scan_part", "scan_lanes", "scan_tiles")
MODULES = (*ROWS, *SCANS, "stream", "open_grid", "scatter", "split_sum", "rolling", "rolling_part")
"""Modules of rules that schedule cores and threads alike."""


LAST = tir.combiner(lambda x, y: tir.where(y > 0, y, x), 0, name="last", commutative=False)


@pytest.mark.parametrize("of", [tir.sum, LAST], ids=["sum", "last"])
@pytest.mark.parametrize("target", [CORES, THREADS])
def test_elements_and_terms_go_to_lanes(target, of):
    a, r = tir.placeholder((5, 36), name="a"), tir.reduce_axis(36, name="r")
    total = tir.compute((5,), lambda i: of(a[i, r], axis=r), name="total")
    out = tir.compute((5, 36), lambda i, j: a[i, j] / total[i], name="out")
    s, levels = tir.Schedule([out], target), levels_of(Target.parse(target))
    config = {"lanes": 4, "vectors": 2, "threads": 32}
    row = levels.share_out(s, ["out.i"])
    levels.reduce(s, "total", ["total.r"], config, at=row, scope="register")
    assert str(levels.spread(s, "out.j", config)) in {str(x) for x in s.loops("out")}
    assert s.check()


def test_what_a_level_has_no_choice_of_is_no_knob():
    cores, threads = (levels_of(Target.parse(x)) for x in (CORES, THREADS))
    assert [*choices(rows=cores.rows(36, 99), threads=cores.threads(36))] == ["rows"]
    assert [*choices(rows=threads.rows(36, 99), threads=threads.threads(36))] == ["threads"]
    assert cores.lanes(8, 99, even=1)[0] == 16 and threads.lanes(32, 99, even=1) == [1]


def test_parts_are_offered_where_blocks_leave_cores_idle():
    levels = levels_of(Target.parse(CORES))
    assert levels.parts(4, 99) == [] and levels.parts(1, 99) == [1, 2, 4, 8] and levels.parts(1, 3) == [1, 2]


@pytest.mark.parametrize("name", MODULES)
def test_rules_for_all_devices_ask_levels_instead_of_the_kind_of_device(name):
    text = Path(rules.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    assert not re.search(r"\.kind (==|!=) \"(cpu|gpu)\"", text)
