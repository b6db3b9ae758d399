"""Tuning killed with SIGKILL at random instants: no finished trial is lost, no log becomes unreadable.

    python benchmarks/tuner/killed.py                  # 100 kills of a search whose measurements take a millisecond
    python benchmarks/tuner/killed.py --real 20        # also of real tuning on the OpenCL CPU device, workers and all

A process tunes into a log and says the id of each trial as soon as the loop calls it finished. It is killed, the log
is read, and the next process resumes from it. The writer's lines go to the file in pieces with pauses between them, so
that kills hit half-written lines, which the one write of a line hardly ever allows.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

from tensorir.tune.interfaces import Bench, SearchPart, Task
from tensorir.tune.log import LogReader, LogWriter, RunIdentity
from tensorir.tune.loop import search
from tensorir.tune.space import Space
from tensorir.tune.spec import RunSpec
from tensorir.tune.strategy import make
from tensorir.tune.trial import Check, Outcome

ME = RunIdentity("killed n=8", "d1g357", {"name": "cpu", "platform": "x", "driver": "1"}, {"tensorir": "0.1.0"})
SPACE = Space(x=range(10_000))
RUNS = 20  # kills before a fresh log: reading it is most of the time
_ID = 16  # characters of the id of a record


@dataclass
class Tally:
    """What happened; ``problems`` is empty where every promise held."""

    kills: int = 0
    finished: int = 0
    torn: int = 0
    resumed: int = 0
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = (
            f"{self.kills} kills: {self.finished} finished trials, {self.torn} torn lines, {self.resumed} runs resumed"
        )
        return "\n".join([said, *self.problems] if self.problems else [f"{said}; nothing lost"])


def kill_often(kills: int, seed: int, folder: Path, longest: float = 0.2) -> Tally:
    """Kill ``kills`` searches after up to ``longest`` seconds each."""
    rng, tally = random.Random(seed), Tally()
    assert len(SPACE.legal) == SPACE.size  # listed once, for all children
    for start in range(0, kills, RUNS):
        log, said = folder / str(start), set[str]()
        for _ in range(min(RUNS, kills - start)):
            tally.resumed += bool(said)
            said |= set(_one(log, rng.uniform(0, longest)))
            tally.kills += 1
            torn = _judge(log, said, tally)
        tally.torn += torn
        tally.finished += len(said)
    return tally


def _one(log: Path, after: float) -> Iterator[str]:
    """Tune in a child, kill it; the ids that it said were finished."""
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine)
        try:
            _tune(log, its)
        finally:
            os._exit(1)
    os.close(its)
    ready = os.read(mine, 1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    text = b"" if ready else b"-"
    while piece := os.read(mine, 1 << 16):
        text += piece
    os.close(mine)
    return (text[n : n + _ID].decode() for n in range(0, len(text) - _ID + 1, _ID))


def _tune(log: Path, tell: int) -> None:
    real = os.write

    def in_pieces(fd: int, data: bytes) -> int:
        for start in range(0, len(data), 200):
            real(fd, data[start : start + 200])
            time.sleep(1e-4)
        return len(data)

    os.write = in_pieces

    def measure(*_: Any) -> Outcome:
        time.sleep(1e-3)
        return Outcome("ok", time_s=1e-3, samples=(1e-3,) * 5, check=Check(True, 0.0))

    reuse = list(LogReader(log).records())
    with LogWriter(log, ME.workload) as writer:
        real(tell, b"+")
        spec = RunSpec(strategy="random", budget_s=None, seed=os.getpid(), on_trial=lambda r: real(tell, r.id.encode()))
        search(spec, Task(ME, {"a": SPACE}, reuse), Bench(measure), writer, SearchPart(make=make))


def _judge(log: Path, said: set[str], tally: Tally) -> int:
    """Compare the log with what was said to be finished; the number of its torn lines."""
    reader = LogReader(log)
    records = list(reader.records())
    ids, kills = {r.id for r in records}, len(reader.segments())
    problems = [f"lost: {len(said - ids)} finished trials"] if said - ids else []
    if reader.damaged > kills or reader.other:
        problems.append(f"{reader.damaged} damaged lines after {kills} kills")
    if len(ids - said) > kills:
        problems.append(f"{len(ids - said)} trials in the log that nobody finished")
    if len({r.config["x"] for r in records}) != len(records):
        problems.append("a configuration was measured twice")
    tally.problems += tuple(problems)
    return reader.damaged


REAL = """
import sys
import tensorir as tir
w = tir.ops.matmul(m=48, n=48, k=48)
print("+", flush=True)
w.tune(trials=100_000, budget=None, log=sys.argv[1], strategy="random", on_trial=lambda r: print(r.id, flush=True))
"""


def kill_real(kills: int, seed: int, folder: Path) -> Tally:
    """The same with real tuning: a supervisor, its worker process and the compiler."""
    rng, tally, said = random.Random(seed), Tally(), set[str]()
    for _ in range(kills):
        run = subprocess.Popen([sys.executable, "-c", REAL, str(folder)], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
        assert run.stdout is not None
        select.select([run.stdout], [], [], 60)
        tally.resumed += bool(said)
        time.sleep(rng.uniform(0, 10))
        run.kill()
        said |= {line.strip() for line in run.stdout.read().splitlines() if len(line.strip()) == _ID}
        run.wait()
        tally.kills += 1
        reader = LogReader(folder)
        ids = {r.id for r in reader.records()}
        if said - ids or reader.damaged > tally.kills:
            tally.problems += (f"lost {len(said - ids)}, {reader.damaged} damaged lines",)
        tally.finished, tally.torn = len(said), reader.damaged
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--real", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tallies = [kill_often(given.kills, given.seed, Path(folder, "fake"))] if given.kills else []
        tallies += [kill_real(given.real, given.seed, Path(folder, "real"))] if given.real else []
    print(*tallies, sep="\n")
    return int(any(t.problems for t in tallies))


if __name__ == "__main__":
    sys.exit(main())
