"""Records for the tests of logs, as tuning would leave them."""

from tensorir.codec import encode
from tensorir.tune.log import LogWriter, RunIdentity
from tensorir.tune.record import seal

DEVICE = {"name": "cpu", "platform": "pocl", "driver": "3.0"}
ME = RunIdentity("matmul m=4 n=4 k=4", "d1g357", DEVICE, {"tensorir": "0.1.0", "compiler": "llvm 14", "numpy": "2.0"})


def ok(time_s=1e-3, **more):
    return {
        "status": "ok",
        "time_s": time_s,
        "samples": [time_s * 0.9, time_s, time_s * 1.1],
        "check": {"ok": True, "max_err": 0.0, "shapes": ["device C[4, 4]"]},
        "source_sha256": "ab" * 32,
        **more,
    }


def text_of(record, **fields):
    """A record as JSON data with its checksum, fields changed."""
    return seal({**encode(record), **fields})


def made(tile=4, time_s=1e-3, kind="trial", identity=ME, **more):
    return identity.record(kind, "default", {"tile": tile}, ok(time_s, **more))


def write(root, records, workload=ME.workload):
    with LogWriter(root, workload) as writer:
        for record in records:
            writer.append(record)
    return writer.path


def finished(path, name="20200101T000000-elsewhere-1.jsonl"):
    """The segment as one that no process writes to any more."""
    import os

    moved = path.rename(path.with_name(name))
    os.utime(moved, (0, 0))
    return moved
