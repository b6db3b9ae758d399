"""Logs and configurations made to do harm: refused or counted, nothing executed, never a traceback."""

import contextlib
import json
import os
import resource
import sys
import tracemalloc

import hostile
import pytest

import tensorir as tir
from tensorir.api import load_cache, measurer, tuning
from tensorir.api.identity import describe, versions_of
from tensorir.cli import common, verb_repro
from tensorir.errors import printable
from tensorir.export import folder, options
from tensorir.export.program import ExportError
from tensorir.runtime.device import devices, open_device
from tensorir.target import Target
from tensorir.tune import log
from tensorir.tune.frozen import frozen_text
from tensorir.tune.interfaces import Bench, Task
from tensorir.tune.log import LogReader
from tensorir.tune.loop import search
from tensorir.tune.record import BadRecord, decode, encode, slug
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import Check, FinalRound, Outcome

needs_device = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)
ABOUT = {"name": "cpu", "platform": "pocl", "driver": "3.0", "target": "opencl"}
VERSIONS = {"tensorir": "0.1.0"}
OP = ("matmul", "8x8x8")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TENSORIR_FROZEN", raising=False)


@pytest.fixture
def harmless(cli, tmp_path):
    """``harmless(*args)`` runs a verb, and nothing but what it should do happens; the exit code."""

    def run(*args):
        code, out, err = cli(*args)
        assert code != common.BUG, err
        assert "internal error" not in err and "\x1b" not in out + err and "\r" not in out + err
        assert not list(tmp_path.rglob("pwned")) and not (tmp_path.parent / "pwned").exists()
        assert len(err) < 20_000
        return code

    return run


@pytest.fixture(scope="module")
def record():
    return hostile.good(ABOUT, VERSIONS)


def test_lines_are_refused(record):
    for name, line in hostile.lines(record).items():
        with pytest.raises(BadRecord):
            print(name, decode(line))


def test_lies_are_valid_records(record):
    """What is tried below passes the schema; a lie that does not would try nothing."""
    for lie in hostile.lies(record):
        assert decode(encode(lie)) == lie


def test_verbs_that_read_logs(harmless, cli, tmp_path):
    good = hostile.write(tmp_path / "log", ABOUT, VERSIONS)
    at = ("--log", "log")
    for verb in (["ls"], ["best"], ["show", good.id], ["stats"], ["freeze"]):
        assert harmless("log", *verb, *at) == common.OK
    for n in (3, 17, 55, 80):
        assert harmless("log", "show", f"{n:x}" + "0" * 12, *at) == common.OK
    assert harmless("log", "verify", *at) == common.BAD_LOG
    assert harmless("log", "best", "--log", "frozen.json") == common.OK
    assert harmless("log", "merge", "log", "-o", "merged") == common.OK
    assert harmless("log", "compact", *at) == common.OK
    stats = json.loads(cli("log", "stats", "--log", "merged", "--json")[1])
    assert stats["damaged"] == 0 and stats["trials"] > 100
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["log", "merged"]
    assert not (tmp_path.parent / "x").exists()


def test_a_log_with_nothing_but_damage(harmless, tmp_path, record):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/x.jsonl").write_bytes(b"\n".join(hostile.lines(record).values()))
    for verb in (["ls"], ["best"], ["stats"], ["compact"]):
        assert harmless("log", *verb, "--log", "log") == common.OK
    assert harmless("log", "freeze", "--log", "log") == common.NO_CONFIG
    assert harmless("cache", "export", "x", "--log", "log") == common.NO_CONFIG
    assert harmless("report", "log") == common.USAGE


def test_verbs_that_use_what_was_chosen(harmless, tmp_path):
    hostile.write(tmp_path / "log", ABOUT, VERSIONS)
    assert harmless("show", *OP, "--log", "log") == common.OK
    assert harmless("export", *OP, "--log", "log", "--to", "source", "-o", "out") == common.OK
    assert harmless("cache", "export", "all.pack", "--log", "log", "--workload", "../../../x") == common.OK
    assert harmless("cache", "import", "all.pack", "--log", "there") == common.OK
    assert [p.parent.parent.name for p in tmp_path.rglob("*-merged-*.jsonl")] == ["there"]


def test_a_report_of_it(harmless, tmp_path, record):
    (tmp_path / "log").mkdir()
    chosen = [r for n, r in enumerate(hostile.lies(record)) if n % 40 == 0 or n in (0, 11)]
    (tmp_path / "log/x.jsonl").write_bytes(b"".join(map(encode, chosen)))
    assert harmless("report", "log") == common.OK
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1, "the page's own"
    assert printable(page) == page, "nothing acts on what shows it, in terminals as in pages"


class Fake(measurer.Measurer):
    """A measuring side that asks no process: everything is ok."""

    def open(self):
        return ABOUT

    def measure(self, trial, remaining):
        return Outcome("ok", time_s=1e-3, samples=(1e-3,), check=Check(True, 0.0))

    def final(self, finalists, remaining):
        return FinalRound(tuple(self.measure(None, None) for _ in finalists))


def test_tuning_goes_on_from_it(harmless, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "Measurer", Fake)
    hostile.write(tmp_path / "log", ABOUT, VERSIONS)
    for tuner in ("random", "bayes"):
        assert (
            harmless("tune", *OP, "--log", "log", "--trials", "18", "--tuner", tuner, "--progress", "plain")
            == common.OK
        )


def test_every_lie_by_itself_in_a_search(record):
    work = hostile.work()
    template = record.template
    spaces = {template: work.templates[template].space_for(Target.parse("opencl"))}
    me = log.RunIdentity(work.title, record.compute, ABOUT, VERSIONS)
    fake = Fake(work, None, RunSpec())
    for lie in hostile.lies(record):
        spec = RunSpec(strategy="climb", trials=2, budget_s=None)
        outcome = search(spec, Task(me, spaces, [lie]), Bench(fake.measure, fake.final))
        assert outcome.status == "ok" and outcome.trials + outcome.reused == 2


def test_every_lie_can_be_asked_for_again(harmless, tmp_path, record, monkeypatch):
    monkeypatch.setattr(verb_repro, "Measurer", Fake)
    (tmp_path / "log").mkdir()
    for lie in hostile.lies(record)[::4]:
        (tmp_path / "log/x.jsonl").write_bytes(encode(lie))
        assert harmless("repro", lie.id, "--log", "log") in (common.OK, common.USAGE, common.BAD_LOG)


@needs_device
def test_every_lie_by_itself_in_a_load(tmp_path, monkeypatch, unoptimised):
    """Loaded and right, or refused with a short message; from a log and from a frozen file."""
    monkeypatch.setattr(load_cache, "package_state", lambda: "as it is")
    monkeypatch.chdir(tmp_path)
    about = describe(open_device("opencl"))
    good = hostile.good(about, versions_of(about))
    folder = tmp_path / "log" / slug(good.workload)
    folder.mkdir(parents=True)
    loaded = 0
    for n, lie in enumerate(hostile.lies(good)):
        if lie.workload != good.workload and n % 5:
            continue  # most of them are the same to a load
        (folder / "x.jsonl").write_bytes(encode(lie))
        (tmp_path / "frozen.json").write_bytes(frozen_text([lie]))
        for where in ("log", "frozen.json"):
            try:
                f = hostile.work().load(log=where)
                assert f.emitted.sha256 == good.source_sha256
                loaded += 1
            except tir.NotTuned as refused:
                assert "\x1b" not in str(refused) and len(str(refused)) < 3000
    assert loaded > 20 and not (tmp_path / "pwned").exists()


def test_a_quarter_of_a_gigabyte_without_a_line_end(tmp_path, record):
    """Over-long lines of any length cost the memory of the longest honest one."""
    file = tmp_path / "x.jsonl"
    with file.open("wb") as made:
        made.truncate(1 << 28)  # a hole: no disk
        made.seek(0, os.SEEK_END)
        made.write(b"\n" + encode(record))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader = LogReader(file)
    assert list(reader.records()) == [record] and reader.damaged == 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 64 << 20


def test_holes_in_place_of_small_files(tmp_path, cli):
    """A terabyte of nothing: no disk, and more than any memory."""
    for name in ("shapes.txt", "manifest.json"):
        with (tmp_path / name).open("wb") as made:
            made.truncate(1 << 40)
    code, _, err = cli("tune", "matmul", "--shapes", "shapes.txt")
    assert code == common.USAGE and "not a list of shapes" in err
    assert folder.earlier(tmp_path) == []
    with pytest.raises(ExportError):
        options.existing(tmp_path)


def test_a_hole_in_place_of_a_frozen_file(tmp_path):
    for head in (b'{"frozen": 1, "sha256": "' + b"0" * 64 + b'", "choices": [\n', b'{"frozen"', b"{\n"):
        with (tmp_path / "x.json").open("wb") as made:
            made.write(head)
            made.truncate(64 << 20)
        tracemalloc.start()
        try:
            with contextlib.suppress(log.LogError):
                assert list(LogReader(tmp_path / "x.json").records()) == []
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


BOMB = "[" * 100_000


@pytest.mark.parametrize(
    "config",
    [BOMB, '{"tile":' + BOMB, '{"a":' * 50_000, '{"tile": NaN}', '{"tile": 1e999}', "tile=__import__('os')", "{}=1",
     '{"tile": "__import__(\'os\').system(\'touch pwned\')"}', "tile=" + "9" * 5000, '{"\\ud800": 1}', "\x00=1", "[1]",
     '{"tile": [1, 2]}', '{"tile": {"a": 1}}', "tile=" + BOMB],
    ids=range(15),
)  # fmt: skip
def test_configurations_of_the_command_line(harmless, config):
    assert harmless("show", *OP, "--config", config) == common.USAGE


def test_arguments_of_the_command_line(harmless):
    for value in (BOMB, "9" * 5000, "NaN", "__import__('os').system('touch pwned')", "\x00", '{"a":' * 50_000):
        assert harmless("show", "absent.py:f", "--arg", f"n={value}") == common.USAGE
    for condition in ("(" * 5000, "tile == __import__('os')", "tile == " + "9" * 5000, "\x00", "not " * 5000 + "tile"):
        assert harmless("tune", *OP, "--restrict", condition, "--dry-run") in (common.OK, common.USAGE)
        assert harmless("tune", *OP, "--restrict", condition, "--log", "log") in (common.USAGE, common.NO_CONFIG)
