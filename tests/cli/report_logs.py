"""Logs to make reports of."""

import random

from tensorir.tune.log import RunIdentity, slug
from tensorir.tune.record import encode

DEVICE = {"name": "a <b>device</b>", "platform": "pocl", "driver": "3.0", "target": "opencl", "kind": "cpu"}
RIGHT = {"ok": True, "max_err": 0.0, "shapes": []}


def identity(workload, compute="0" * 32, **device):
    return RunIdentity(workload, compute, {**DEVICE, **device}, {"tensorir": "0.1.0"})


def fine(time_s, **more):
    return {"status": "ok", "time_s": time_s, "samples": [time_s], "source_sha256": "ab" * 32, "check": RIGHT, **more}


def keep(folder, *records):
    """One segment, whose lines nobody waits for the disk to have."""
    place = folder / slug(records[0].workload)
    place.mkdir(parents=True, exist_ok=True)
    (place / "20260101T000000-here-1.jsonl").write_bytes(b"".join(map(encode, records)))


def run(me, count, seed=0, knobs=9, peer="torch"):
    """Trials of two templates, some of which fail, and a final round in which the third fastest wins."""
    draw = random.Random(seed)
    records = []
    for n in range(count):
        config = {f"knob_{k}": draw.choice([1, 2, 4, 8, 16]) for k in range(knobs)} | {"order": draw.choice("abc")}
        seconds = 1e-3 * config["knob_0"] ** 0.5 * draw.lognormvariate(0, 0.2)
        result = fine(seconds, samples=[seconds * draw.lognormvariate(0, 0.03) for _ in range(9)])
        result |= {"source_sha256": f"{n:064x}"}
        if n % 11 == 5:
            result = {"status": "compile_error", "detail": {"message": "error: use of undeclared identifier 'x'"}}
        elif n % 13 == 6:
            result = {"status": "wrong_result", "detail": {"where": "c[3, 7] is 12 and should be 13"}}
        records.append(me.record("trial", "first" if draw.random() < 0.7 else "second", config, result))
    fastest = sorted((r for r in records if r.status == "ok"), key=lambda r: r.time_s)[:5]
    return [*records, *final(me, fastest, winner=2, peer=peer, seed=seed)]


def final(me, finalists, winner, peer="torch", seed=0, busy=None, flags=()):
    """The final round: all take 1.1 ms but one, which takes 1 ms; the library 2 ms, in the same rounds."""
    draw = random.Random(seed)
    pace = [draw.lognormvariate(0, 0.1) for _ in range(15)]
    library = [2e-3 * p * draw.lognormvariate(0, 0.02) for p in pace]
    beside = {"name": peer, "time_s": 2e-3, "low_s": min(library), "high_s": max(library), "samples": library}
    for n, r in enumerate(finalists):
        seconds = 1e-3 if n == winner else 1.1e-3
        own = {"of": r.id, "round": f"round-{seed}", "source_sha256": r.source_sha256, "check": r.check}
        own |= {"low_s": 0.98 * seconds, "high_s": 1.03 * seconds, "samples": [seconds * p for p in pace]}
        own |= {"baseline": beside} if n == 0 else {}
        own |= ({"load": busy} if busy else {}) | ({"flags": list(flags)} if flags else {})
        yield me.record("final", r.template, r.config, fine(seconds, **own))
