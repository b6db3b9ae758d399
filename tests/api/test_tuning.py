"""Tuning through a worker process, and loading what it found."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zoo

import tensorir as tir
from tensorir.api.asker import Asker
from tensorir.api.builders import Builders
from tensorir.api.candidate import Refused, prepare
from tensorir.api.identity import repro_command
from tensorir.api.measurer import Measurer
from tensorir.api.origin import from_file
from tensorir.api.questions import Ready
from tensorir.api.tuning import _restricted
from tensorir.api.workload import Template
from tensorir.codec import decode, encode
from tensorir.errors import DeclarationError, Problem
from tensorir.errors.needs import need_seconds
from tensorir.runtime.device import devices
from tensorir.target import Target
from tensorir.tune.log import LogReader, LogWriter, best
from tensorir.tune.process import WorkerError
from tensorir.tune.spec import RunSpec

ZOO = str(Path(zoo.__file__))

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


@pytest.fixture(scope="module")
def product_log(tmp_path_factory):
    log = str(tmp_path_factory.mktemp("product"))
    seen = []
    outcome = from_file(ZOO, "product", {"n": 24}).tune(budget="120s", log=log, on_trial=seen.append, seed=3, top=2)
    return log, outcome, seen


def test_the_first_trial_waits_for_no_model(tmp_path):
    """skopt takes seconds to import, and the model is first asked after several trials."""
    code = (
        "import sys, json; from pathlib import Path; from tensorir.api.origin import from_file\n"
        "seen = []\n"
        "def note(record): seen.append([m for m in ('skopt', 'sklearn', 'scipy') if m in sys.modules])\n"
        f"from_file({ZOO!r}, 'product', {{'n': 24}}).tune(trials=2, log={str(tmp_path)!r}, on_trial=note, builders=1)\n"
        "print(json.dumps(seen))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]


def test_result_and_records(product_log):
    log, outcome, seen = product_log
    assert (outcome.status, outcome.trials, outcome.reused) == ("ok", 8, 0) and len(seen) == 8
    assert outcome.best.checked and outcome.best.time_s <= outcome.default.time_s and outcome.best.confirmed
    assert outcome.baseline["name"] == "numpy" and Path(outcome.log_path).is_file()
    assert outcome.identity.workload == "product n=24"
    for r in outcome.records:
        assert r.status == "ok" and len(r.samples) >= 3 and r.check["max_err"] == 0.0
        assert len(r.check["shapes"]) > 3 and r.trace and r.resources["compile_s"] > 0
        again = zoo.product(24).schedule(r.config, template=r.template, target=r.device["target"])
        assert again.emitted().sha256 == r.source_sha256
    finals = [r for r in LogReader(log).records(kind="final") if r.status == "ok"]
    assert finals and any(s.startswith("device C.i=") for r in finals for s in r.check["shapes"])
    assert all(re.search(r"normal floats \d+$", r.check["shapes"][-1]) for r in finals), "all with the same seed"
    assert len({r.check["shapes"][-1] for r in finals}) == 1


def test_same_run_again_measures_nothing(product_log):
    log, _, _ = product_log
    again = from_file(ZOO, "product", {"n": 24}).tune(budget="120s", log=log, trials=8, top=1)
    assert (again.trials, again.reused, again.status) == (0, 8, "ok")
    given = {"trials": 1, "fresh": True, "strategy": "grid", "top": 1}
    fresh = from_file(ZOO, "product", {"n": 24}).tune(budget="120s", log=log, **given)
    assert (fresh.trials, fresh.reused) == (1, 0) and fresh.search["name"] == "grid"


@pytest.mark.parametrize("error", [SystemExit(0), ValueError("half a pair: \ud800")])
def test_whatever_a_template_raises_is_its_own_trial(error):
    def schedule(s, config):
        raise error

    A = tir.placeholder((4,), name="A")
    C = tir.compute((4,), lambda i: A[i], name="C")
    work = tir.Workload("raising", C, {"t": (schedule, tir.Space())})
    with pytest.raises(Refused) as refused:
        prepare(work, "t", {}, Target("opencl", "cpu"))
    found = refused.value.outcome
    assert found.status == "illegal_schedule" and found.told["code"] == "template.raised"
    assert type(error).__name__ in found.told["message"] and json.dumps(encode(found), ensure_ascii=False).encode()


def test_what_a_template_made_before_it_was_changed_is_stale(tmp_path):
    """People mend their templates and tune again: what failed is tried again, what was fast says nothing any more."""
    n = 1 << 17  # of microseconds a busy machine may make any number
    A = tir.placeholder((n,), name="A")
    C = tir.compute((n,), lambda i: A[i] * 5 + 7, name="C")
    text = {"wrong": "C[3] = 0;", "slower": "// fast once", "same": "", "default": ""}

    def schedule(s, config):
        if text[config["kind"]] is None:
            raise KeyError("a mistake")
        return s.with_source(s.source().rstrip().removesuffix("}") + f"  {text[config['kind']]}\n}}\n")

    kinds = ["default", "same", "slower", "wrong", "raises"]
    work = tir.Workload("mended", C, {"t": (schedule, tir.Space(kind=kinds))})
    text["raises"] = None
    first = work.tune(budget=None, log=str(tmp_path), strategy="grid")
    assert first.counts == {"ok": 3, "wrong_result": 1, "illegal_schedule": 1}
    text |= {"wrong": "// right", "slower": "// slower", "raises": "// nothing"}
    with pytest.warns(UserWarning, match="template t changed since: 3 configurations of the log stale, not used"):
        second = work.tune(budget=None, log=str(tmp_path), strategy="grid")
    assert (second.reused, second.counts) == (2, {"ok": 3}) and len(second.finalists) == 4, "two have one source"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        third = work.tune(budget=None, log=str(tmp_path), strategy="grid")
    assert (third.reused, third.trials) == (5, 0)
    text["default"] = text["same"] = "// again"
    assert work.load(log=str(tmp_path)).source.count("// again") == 0, "the others are as they were"


def test_load_gives_the_checked_winner(product_log):
    log, outcome, _ = product_log
    f = from_file(ZOO, "product", {"n": 24}).load(log=log)
    a = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    assert np.allclose(f(a, a), a @ a, atol=1e-4) and f.trace.startswith("s.split(")
    sources = {r.source_sha256 for r in outcome.records}
    assert f.emitted.sha256 in sources


def test_load_without_a_record_says_what_to_do(product_log, tmp_path):
    log, _, _ = product_log
    with pytest.raises(tir.NotTuned) as caught:
        from_file(ZOO, "product", {"n": 20}).load(log=log)
    text = str(caught.value)
    assert "tensorir tune" in text and "--arg n=20" in text and "nearest tuned: product n=24 (distance 0.17)" in text
    with pytest.raises(tir.NotTuned):
        zoo.product(24).load(log=str(tmp_path / "absent"))
    assert not list(tmp_path.iterdir())


def test_load_from_the_nearest_shape(product_log):
    """Built for this shape by another one's configuration, checked here, and the distance is said."""
    log, _, _ = product_log
    near = tir.nearest(zoo.product(20), log=log)
    assert [n.workload for n in near] == ["product n=24"] and str(near[0]) == "product n=24 (distance 0.17)"
    (winner,) = best(LogReader(log))
    assert (near[0].config, near[0].time_s) == (winner.record.config, winner.time_s)
    f = zoo.product(20).load(log=log, nearest=True)
    a = np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)
    assert np.allclose(f(a, a), a @ a, atol=1e-4) and f.nearest == near[0]
    assert zoo.product(24).load(log=log, nearest=True).nearest is None and not tir.nearest(zoo.product(24), log=log)


def test_more_than_the_best_of_the_nearest_shape_is_tried(product_log):
    log, outcome, _ = product_log
    best = outcome.best.config
    work = zoo.product(20)
    work.templates["tile"] = Template(zoo.tile, tir.Space(ti=[1, 2], tj=[4, 8], out=[not best["out"]]))
    assert work.load(log=log, nearest=True).nearest.config["out"] is not best["out"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": {"driver": "pocl 9"}}, "another driver (pocl 9 then, "),
        ({"device": {"name": "abacus"}}, "another device (abacus then, "),
        ({"device": {"target": "opencl -registers=7"}}, "another limits of the device (opencl -registers=7 then, "),
        ({"versions": {"compiler": "llvm 3"}}, "another compiler (llvm 3 then, "),
        ({"time_s": None, "status": "run_timeout"}, "of 1 trials none was right: 1 run_timeout"),
    ],
)
def test_not_tuned_names_the_difference(product_log, tmp_path, change, said):
    _, outcome, _ = product_log
    record = next(r for r in outcome.records if r.status == "ok")
    nested = {k: {**getattr(record, k), **v} if isinstance(v, dict) else v for k, v in change.items()}
    with LogWriter(tmp_path, record.workload) as writer:
        writer.append(replace(record, **nested))
    with pytest.raises(tir.NotTuned) as caught:
        from_file(ZOO, "product", {"n": 24}).load(log=str(tmp_path))
    assert said in str(caught.value), str(caught.value)


def test_the_command_that_repeats_a_trial_can_be_pasted():
    work = from_file(ZOO, "product", {"n": 24})
    words = shlex.split(repro_command(work, "ab12", "my logs", "opencl:0:0"))
    assert words[:3] == ["tensorir", "repro", "ab12"] and words[words.index("--log") + 1] == "my logs"
    assert words[words.index("--workload") + 1] == f"{Path(ZOO).resolve()}:product" and "n=24" in words
    assert repro_command(tir.ops.matmul(m=8, n=8, k=8), "ab12", "tuning_logs") == "tensorir repro ab12"


def test_nearest_shapes_are_checked_here(product_log, monkeypatch):
    """What is not legal here, or computes something else here, is not taken; then it is not tuned."""
    log, _, _ = product_log
    function = zoo.tile
    wrong = zoo.product(20)
    with monkeypatch.context() as m:
        m.setattr(zoo, "tile", lambda s, c: function(s, c) or s.with_source(s.source().replace("+=", "-=")))
        wrong = zoo.product(20)
    illegal = zoo.product(20)
    illegal.templates["tile"] = Template(function, tir.Space(ti=[4], tj=[4], out=[False]))
    for work in (wrong, illegal):
        with pytest.raises(tir.NotTuned):
            work.load(log=log, nearest=True)


def test_load_never_uses_a_stale_record(product_log, monkeypatch):
    log, _, _ = product_log
    work = zoo.product(24)
    function = work.templates["tile"].function
    monkeypatch.setattr(zoo, "tile", lambda s, c: function(s, c) or s.unroll("C.k"))
    with pytest.raises(tir.NotTuned) as caught:
        zoo.product(24).load(log=log)
    assert "stale" in str(caught.value)


def test_without_an_origin_the_worker_gets_sources(tmp_path):
    work = zoo.product(16)
    outcome = work.tune(budget="60s", log=str(tmp_path), trials=2)
    assert outcome.trials == 2 and outcome.counts == {"ok": 2} and outcome.baseline is None
    assert all(r.check["shapes"] and r.source_sha256 and r.trace for r in outcome.records)
    assert work.load(log=str(tmp_path)).source


def test_a_template_of_which_nothing_is_left_leaves_the_others():
    A = tir.placeholder((8,), name="A")
    C = tir.compute((8,), lambda i: A[i] * 2, name="C")
    small, large = tir.Space(tile=[1, 2]), tir.Space(tile=[2, 4, 8])
    work = tir.Workload("own", C, {"small": (lambda s, c: s, small), "large": (lambda s, c: s, large)})
    target = Target("opencl", "cpu")
    assert list(_restricted(work, ["tile >= 4"], (), target)) == ["large"]
    assert list(_restricted(work, ["tile == 2"], (), target)) == ["small", "large"]
    with pytest.raises(DeclarationError, match="tile > 9"):
        _restricted(work, ["tile > 9"], (), target)


@pytest.mark.parametrize(("builders", "trials", "together"), [(1, 2, []), (3, 6, [3, 2])])
def test_builders_make_several_candidates_at_once(tmp_path, monkeypatch, builders, trials, together):
    replies = []

    class Noted(Builders):
        def build(self, messages, remaining_s):
            found = super().build(messages, remaining_s)
            replies.append(found)
            return found

    monkeypatch.setattr("tensorir.api.channel.Builders", Noted)
    work = from_file(ZOO, "product", {"n": 24})
    outcome = work.tune(trials=trials, budget="120s", log=str(tmp_path), builders=builders, strategy="grid", top=1)
    assert outcome.trials == trials and outcome.counts == {"ok": trials}
    assert [len(r) for r in replies] == together, "the default is measured alone"
    for r in outcome.records:
        assert len(r.check["shapes"]) > 3 and len(set(r.check["shapes"])) == len(r.check["shapes"])
        assert r.source_sha256 and r.trace and r.samples
    assert all(decode(Ready, b.answer).known.check.ok for found in replies for b in found)


WARM = """
import os, sys
from pathlib import Path
import numpy as np
import tensorir as tir
x = tir.placeholder((int(sys.argv[1]),), name="x")
s = tir.Schedule(tir.compute(x.shape, lambda i: x[i] * 2.0, "y"), target="opencl")
outer, inner = s.split("y.i", [None, 64])
program = s.bind(outer, "block.x").bind(inner, "thread.x").build("opencl").program
given = np.zeros(x.shape, "float32")
made = lambda: {p.parent.name for p in Path(os.environ["POCL_CACHE_DIR"]).rglob("*.so")} - {"0-0-0"}  # of any size
program.warm(given)
warm = made()
program(given)
print(len(warm), len(made() - warm))
"""


@pytest.mark.parametrize("size", [4096, 65536, 2**20])
def test_what_a_builder_leaves_is_all_that_the_launch_needs(tmp_path, size):
    command = [sys.executable, "-c", WARM, str(size)]
    own = {"POCL_CACHE_DIR": str(tmp_path / "pocl"), "TENSORIR_CACHE_DIR": str(tmp_path / "own")}
    (tmp_path / "pocl").mkdir()
    environment = {**os.environ, **own}  # a binary that is kept brings what other sizes made of it
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["1", "0"]


def test_a_builder_that_cannot_start_leaves_its_candidate_to_the_measuring_process(tmp_path, monkeypatch):
    class Broken(Asker):
        def request(self, request, *rest):
            if request.do == "build":
                raise WorkerError(Problem("worker.start", "no"))
            return super().request(request, *rest)

    monkeypatch.setattr("tensorir.api.builders.Asker", Broken)
    outcome = from_file(ZOO, "product", {"n": 24}).tune(trials=3, budget="60s", log=str(tmp_path), builders=2, top=1)
    assert outcome.counts == {"ok": 3}


def test_restrict_and_patience(product_log):
    log, _, _ = product_log
    work = from_file(ZOO, "product", {"n": 24})
    outcome = work.tune(budget="60s", log=log, restrict="ti == 2 and not out")
    assert outcome.space == {"configs": 8, "legal": 2} and {r.config["ti"] for r in outcome.records} == {2}
    for condition, code in (
        ("ti == 7", "space.empty"),
        ("nothing > 1", "space.unknown-knob"),
        ("ti ==", "space.restrict"),
    ):
        with pytest.raises(tir.DeclarationError) as caught:
            work.tune(log=log, restrict=condition)
        assert caught.value.code.startswith(code)


@pytest.mark.parametrize("given", [{"on_trial": 5}, {"on_trial": lambda: 1}, {"stop": lambda record: 1}])
def test_what_is_told_takes_what_it_is_told(given):
    with pytest.raises(tir.DeclarationError) as caught:
        tir.ops.matmul(8, 8, 8).tune(trials=1, **given)
    assert caught.value.code == "argument.type" and "must be a function" in str(caught.value)


def test_a_set_of_shapes(tmp_path, monkeypatch):
    """Two shapes on the device: made by the same builders, checked, re-measured in turn, served by kernels that this
    version makes again.
    """
    asked = []

    class Noted(Builders):
        def build(self, messages, remaining_s):
            asked.append((self, [m.setup.key for m in messages]))
            return super().build(messages, remaining_s)

    monkeypatch.setattr("tensorir.api.channel.Builders", Noted)
    works = [from_file(ZOO, "product", {"n": n}) for n in (16, 20)]
    given = {"weights": [1, 2], "strategy": "random", "builders": 2, "top": 1, "final_s": 0.1}
    found = tir.tune_shapes(works, trials=6, budget=None, log=str(tmp_path), **given)
    assert found.status == "ok" and [o.trials for o in found.outcomes] == [6, 6]
    assert len({who for who, _ in asked}) == 1 and max(len(keys) for _, keys in asked) == 2
    assert len({key for _, keys in asked for key in keys}) == 2, "those of both shapes are built"
    assert len(found.portfolio.served) == len(works)
    for work in works:
        made = found.choose(**work.parameters)
        assert work.schedule(**made).emitted().text and work.load(log=str(tmp_path)).nearest is None


def test_through_an_executor(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        outcome = from_file(ZOO, "product", {"n": 16}).tune(budget="60s", log=str(tmp_path), trials=2, executor=pool)
        for work, executor, device in (
            (zoo.product(16), pool, None),
            (zoo.product(16), 5, None),
            (from_file(ZOO, "product", {"n": 16}), pool, ["opencl:0:0", "opencl:0:1"]),
        ):
            with pytest.raises(tir.DeclarationError) as caught:
                work.tune(device, log=str(tmp_path), executor=executor)
            assert caught.value.code in ("tune.origin", "tune.executor", "tune.devices")
    assert outcome.counts == {"ok": 2} and all(r.detail["place"] == "worker 0" for r in outcome.records)


def test_workers_that_measure_something_else_are_unfit(tmp_path, monkeypatch):
    """Another definition under the same name, as from an old copy of the file on another machine."""
    file = tmp_path / "own.py"
    file.write_text(Path(ZOO).read_text())
    work = from_file(str(file), "product", {"n": 16})
    file.write_text(Path(ZOO).read_text().replace("A[i, k] * B[k, j]", "A[i, k] - B[k, j]"))
    with ThreadPoolExecutor(1) as pool:
        outcome = work.tune(budget="60s", log=str(tmp_path / "log"), executor=pool)
    assert outcome.stopped == "workers" and "computation is" in str(outcome.error) and outcome.trials == 0


@pytest.mark.filterwarnings("ignore:several workers measure")
def test_a_set_of_shapes_through_an_executor(tmp_path):
    """Every trial is seen by its shape, once, and the limit of trials holds."""
    seen = []
    works = [from_file(ZOO, "product", {"n": n}) for n in (16, 20)]
    with ThreadPoolExecutor(2) as pool:
        found = tir.tune_shapes(
            works, trials=3, budget="100s", log=str(tmp_path), executor=pool, on_trial=seen.append, final_s=0.1
        )
    assert found.status == "ok" and not found.left_out
    assert [len(r.outcome.records) for r in found.results] == [3, 3] and len(seen) == 6
    assert len({(r.workload, str(r.config)) for r in seen}) == 6
    assert len(list(LogReader(tmp_path).records(kind="trial"))) == 6


@pytest.mark.filterwarnings("ignore:several workers measure")
def test_several_devices_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("POCL_DEVICES", "pthread pthread")  # twice the same processor; another runtime has it once
    work, names = from_file(ZOO, "product", {"n": 16}), ["opencl:pocl:0", "opencl:pocl:1"]
    try:
        outcome = work.tune(names, budget="60s", log=str(tmp_path), trials=3, top=1)
    except tir.DeviceError as error:
        pytest.skip(f"no second device: {error.code}")
    assert outcome.counts == {"ok": 3} and {r.detail["place"] for r in outcome.records} == set(names)
    assert len({r.device["id"] for r in outcome.records}) == 2 and outcome.best.confirmed
    with pytest.raises(tir.DeclarationError) as caught:
        work.tune([names[0], "opencl:pocl"], log=str(tmp_path))
    assert caught.value.code == "tune.devices" and "are both" in str(caught.value)
    works = [from_file(ZOO, "product", {"n": n}) for n in (16, 20)]
    found = tir.tune_shapes(works, names, trials=5, budget="100s", log=str(tmp_path), final_s=0.1, top=1)
    assert found.status == "ok" and [len(r.outcome.records) for r in found.results] == [5, 5]
    assert {r.detail["place"] for r in found.outcomes[1].records} == set(names)


def test_budget_holds_even_for_a_hang(tmp_path):
    began = time.monotonic()
    outcome = from_file(ZOO, "own", {}).tune(
        budget=6.0, timeout=60.0, log=str(tmp_path), restrict="mode in ('plain', 'hang')"
    )
    assert time.monotonic() - began < 6 + 2 + 3, "two seconds are promised on an idle machine"
    assert outcome.status == "ok" and outcome.stopped == "budget" and outcome.counts == {"ok": 1}


def test_interrupt_returns_the_best_so_far(tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    outcome = from_file(ZOO, "product", {"n": 24}).tune(budget="60s", log=str(tmp_path), on_trial=stop)
    assert outcome.status == "interrupted" and outcome.best is not None and outcome.trials == 1


def test_device_that_is_not_there(tmp_path):
    with pytest.raises(tir.DeviceError) as caught:
        zoo.product(16).tune(device="opencl:99:0", log=str(tmp_path))
    assert caught.value.code == "device.not-found"


def test_nothing_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    from_file(ZOO, "product", {"n": 16}).tune(budget="60s", log=str(tmp_path / "log"), trials=1)
    left = {p.name for p in tmp_path.iterdir() if p.name.startswith("tensorir-")}
    assert not left
    assert json.loads(next((tmp_path / "log").rglob("*.jsonl")).read_text().splitlines()[0])["v"] == 2


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), (" 7 ", 7), (3, 3), (None, None)]
)
def test_times(text, value):
    assert RunSpec.of(budget=text).budget_s == value


@pytest.mark.parametrize("bad", ["soon", "-3s", "0", "", 0, -1, float("nan"), True, [], "1e3s"])
def test_wrong_times(bad):
    with pytest.raises(tir.DeclarationError) as caught:
        need_seconds(bad)
    assert caught.value.code == "tune.time"


def test_wrong_options():
    with pytest.raises(tir.DeclarationError) as caught:
        RunSpec.of(budget="5s", speed=3)
    assert caught.value.code == "tune.option"
    for trials in (0, -3, 2.5, True):
        with pytest.raises(tir.DeclarationError):
            RunSpec.of(trials=trials, budget="5s")


@pytest.mark.parametrize(
    ("name", "word"),
    [("nothing", "no function"), ("not_a_workload", "returned int"), ("product", "failed with TypeError")],
)
def test_files_that_give_no_workload(name, word):
    with pytest.raises(tir.DeclarationError) as caught:
        from_file(ZOO, name, {"m": 3} if name == "product" else {})
    assert caught.value.code == "workload.file" and word in str(caught.value)
    with pytest.raises(tir.DeclarationError):
        from_file(os.devnull, "f", {})


def test_only_templates_that_workers_can_make_are_built_side_by_side():
    channel = SimpleNamespace(flights=None, about={"platform": "Portable Computing Language"})
    spec = SimpleNamespace(builders=3, budget_s=None)
    widths = [Measurer.width.fget(SimpleNamespace(spec=spec, channel=channel, work=SimpleNamespace(origin=origin)))
              for origin in (None, "of a file")]  # fmt: skip
    assert widths == [1, 3]
