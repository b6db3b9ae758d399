"""Good candidates among evil ones: every one gets its status, and the winner is as good as without them."""

from dataclasses import replace
from pathlib import Path

import chaos_zoo
import numpy as np
import pytest

from tensorir.api.origin import from_file
from tensorir.runtime.device import devices
from tensorir.tune.log import LogReader, LogWriter

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and "pocl" in d.driver.lower() for d in devices()), reason="no PoCL"
)
ELSEWHERE = ("abort", "sleep")  # the worker's own tests have these; each costs another process


def tuned(log, **options):
    work = from_file(str(Path(chaos_zoo.__file__)), "corpus", {"evil": options.pop("evil")})
    return work.tune(budget="200s", log=str(log), strategy="grid", **options)


@pytest.fixture(scope="module")
def among_evil(tmp_path_factory):
    log = tmp_path_factory.mktemp("chaos")
    restrict = f"kind not in {ELSEWHERE}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorir.api.limits.LEAST_S", 0.5)
        return tuned(log, evil=True, restrict=restrict, timeout=1.0, compile_timeout=2.5)


def test_each_has_its_status(among_evil):
    outcome = among_evil
    by_kind = {r.config["kind"]: r for r in outcome.records}
    wanted = {kind: status for kind, status in chaos_zoo.STATUS.items() if kind not in ELSEWHERE}
    assert {kind: r.status for kind, r in by_kind.items()} == wanted | dict.fromkeys(
        [*chaos_zoo.GOOD, *chaos_zoo.LATE], "ok"
    )
    assert outcome.status == "ok" and outcome.stopped == "exhausted"
    assert by_kind["slow"].detail["at_least_s"] > 5 * by_kind["good"].time_s
    assert by_kind["slow"].check is None, "some of its 64 blocks were enough"
    detail = {kind: r.detail for kind, r in by_kind.items()}
    assert detail["segfault"]["signal"] == "SIGSEGV" and detail["segfault"]["phase"] == "run"
    assert detail["last"]["phase"] == "whole" and detail["last"]["limit_s"] <= 1.0, "what the others took is its limit"
    assert detail["loop"]["phase"] == "run" and detail["bomb"]["phase"] == "compile"
    assert detail["memory"]["limit"] == detail["workspace"]["limit"] == "host memory"
    assert "C[63]" in detail["element"]["where"] and by_kind["element"].check["max_err"] == 1.0
    assert "nan" in detail["nan"]["where"] and "out-of-bounds" in detail["beyond"]["where"]
    assert detail["edge"]["phase"] == "check" and "C.i=33" in detail["edge"]["message"]
    assert detail["tail"]["phase"] == "run" and "for C.i=32" in detail["tail"]["where"]
    assert detail["whole"]["phase"] == "run" and "on normal floats" in detail["whole"]["where"]
    assert detail["raise"]["code"] == "template.raised" and "not here" in detail["raise"]["message"]
    assert detail["interrupt"]["message"] == "KeyboardInterrupt: "
    assert detail["thread"]["code"] == "template.left-running" and "thread left" in detail["thread"]["message"]
    assert detail["text"]["log"] and by_kind["text"].source_sha256
    assert {r["reason"].split(":")[0] for r in outcome.reasons} == set(wanted.values()) - {"skipped_slow"}


def test_what_is_right_on_whole_numbers_alone_is_found_in_the_final_round(among_evil):
    finals = {r.config["kind"]: r for r in LogReader(Path(among_evil.log_path).parent).records(kind="final")}
    assert {kind: finals[kind].status for kind in chaos_zoo.LATE} == chaos_zoo.LATE
    assert "on normal floats" in finals["later"].detail["where"] and finals["good"].status == "ok"


def test_the_kernel_that_others_are_timed_beside_is_made_before_a_candidate_is(tmp_path):
    """Templates may remember what they made last: the default's schedule would mend the broken pass of "edge"."""
    outcome = tuned(tmp_path, evil=True, restrict="kind in ('good', 'edge')", builders=1)
    assert [r.status for r in outcome.records] == ["ok", "wrong_result"]
    assert outcome.records[1].detail["phase"] == "check" and outcome.best.config["kind"] == "good"


def test_winner_is_one_of_those_without_evil(among_evil, tmp_path):
    outcome = among_evil
    without = tuned(tmp_path, evil=False)
    ties = {t.config["kind"] for t in (without.best, *without.ties)}
    assert outcome.best.config["kind"] in ties and ties <= set(chaos_zoo.GOOD)
    assert outcome.best.confirmed and outcome.best.checked
    assert "twice" not in {t.config["kind"] for t in (outcome.best, *outcome.ties)} | ties


def test_what_is_right_on_whole_numbers_only_is_not_loaded(among_evil, tmp_path):
    """Trials that were no new best have tried nothing else, and after an interrupted run one of them may be fastest."""
    work = from_file(str(Path(chaos_zoo.__file__)), "corpus", {"evil": True})
    with LogWriter(tmp_path, work.title) as log:
        for record in among_evil.records:
            if record.config["kind"] == "good":
                log.append(record)
            elif record.config["kind"] == "later":
                log.append(replace(record, time_s=record.time_s / 9))
    (a,) = work.random_inputs(seed=1)
    assert np.allclose(work.load(log=str(tmp_path))(a), a * 5 + 7, atol=1e-5)
