"""Processes that tune with one log do not measure the same configurations."""

import json
import threading
import time

from records import ME, made, write
from searching import search

from tensorir.tune.circumstances import Limits
from tensorir.tune.claims import CLAIM_SUFFIX, Others
from tensorir.tune.log import LogReader, LogWriter, slug
from tensorir.tune.space import Space

SPACE = Space(tile=range(24), default={"tile": 0})
NOBODY = 2**22 + 1  # no process has this number


def folder(log):
    return log / slug(ME.workload)


def tuned(log, calls, started, seed=0):
    others = Others(folder(log), Limits())
    with LogWriter(log, ME.workload) as writer:
        others.begin(writer.path)

        def measure(template, config, kind, left):
            calls.append(config["tile"])
            started.wait()
            time.sleep(0.002)
            return {
                "status": "ok",
                "time_s": 1e-3,
                "samples": [1e-3],
                "check": {"ok": True},
                "source_sha256": "ab" * 32,
            }

        try:
            return search("random", {"default": SPACE}, measure, log=writer, identity=ME, others=others, seed=seed)
        finally:
            others.end()


def test_eight_searches_on_one_log_measure_each_configuration_once(tmp_path):
    calls, found, started = [], [], threading.Barrier(8, timeout=60)
    released = threading.Event()

    class Start:
        """All are under way before the first one answers."""

        def wait(self):
            if not released.is_set():
                started.wait()
                released.set()

    one = Start()
    runs = [threading.Thread(target=lambda: found.append(tuned(tmp_path, calls, one))) for _ in range(8)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(calls) == list(range(24))
    assert [o.status for o in found] == ["ok"] * 8 and sum(o.trials for o in found) == 24
    assert all(o.trials for o in found) and not list(folder(tmp_path).glob(f"*{CLAIM_SUFFIX}"))


def claim(log, keys, name="x", **changed):
    folder(log).mkdir(exist_ok=True)
    about = {"pid": NOBODY, "host": "elsewhere", "until": 100.0, "keys": keys} | changed
    (folder(log) / f"{name}{CLAIM_SUFFIX}").write_text(json.dumps(about))


def test_claims_of_those_that_are_gone_are_void(tmp_path):
    from tensorir.tune.store import host_name

    now = [50.0]
    others = Others(folder(tmp_path), Limits(), clock=lambda: now[0])
    claim(tmp_path, ["a"])
    claim(tmp_path, ["b"], "y", host=host_name())
    (folder(tmp_path) / f"z{CLAIM_SUFFIX}").write_text("{")
    assert others.claimed() == {"a"}, "that process is on another machine, the other one is no more"
    now[0] = 101.0
    assert others.claimed() == set() and [p.name for p in folder(tmp_path).iterdir()] == [f"z{CLAIM_SUFFIX}"]


def test_of_two_claims_at_once_not_both_hold(tmp_path):
    path = write(tmp_path, [made(1)])
    mine, theirs = Others(path.parent, Limits()), Others(path.parent, Limits())
    mine.begin(path.with_name("a.jsonl"))
    theirs.begin(path.with_name("b.jsonl"))
    seen, mine_claimed = [], mine.claimed

    def late():
        """The other one claims between the look and the claim of this one."""
        seen.append(mine_claimed())
        if len(seen) == 1:
            theirs._write(["k"])
        return seen[-1]

    mine.claimed = late
    assert not mine.claim(["j", "k"], "k") and seen == [set(), {"k"}] and theirs.claimed() == {"j"}
    theirs.end()
    mine.claimed = mine_claimed
    assert mine.claim(["k"], "k") and theirs.claimed() == {"k"}


def test_what_others_measure_meanwhile_is_known(tmp_path):
    """And what was there before is not told again."""
    path = write(tmp_path, [made(1)])
    others = Others(path.parent, Limits())
    assert list(others.measured()) == []
    write(tmp_path, [made(2), made(3)])
    with LogWriter.resume(path) as writer:
        writer.append(made(4))
    assert sorted(r.config["tile"] for r in others.measured()) == [2, 3, 4] and list(others.measured()) == []


def test_a_claim_that_is_given_up_is_measured(tmp_path):
    """A process on another machine claims all but the default and is gone: its limit is waited for by nobody."""
    calls, never = [], threading.Event()
    never.set()
    (folder(tmp_path)).mkdir()
    key = '["default", {"tile": 5}]'
    claim(tmp_path, [key], until=time.time() + 3600)
    outcome = tuned(tmp_path, calls, never)
    assert sorted(calls) == [n for n in range(24) if n != 5] and outcome.stopped == "exhausted"
    claim(tmp_path, [key], until=time.time() - 1)
    assert len(list(LogReader(tmp_path).records())) == 23
