"""Logs as tuning would leave them, without the time that measuring takes."""

import tensorir as tir
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.codec import encode
from tensorir.runtime.device import open_device
from tensorir.tune.store import LogWriter


def operator():
    return tir.ops.matmul(m=16, n=16, k=16)


def configs(work):
    template = work.template_for("opencl")
    space = work.templates[template].space
    return template, [space.config(row) for row in range(3)]


def note(work, log, times=(1e-3,), **changes):
    """Records of the first configurations, as tuning would leave them."""
    device = open_device("opencl")
    identity = identity_of(work, describe(device))
    template, found = configs(work)
    records = []
    with LogWriter(log, work.title) as writer:
        for time_s, config in zip(times, found, strict=False):
            made = prepare(work, template, config, device.target, check=False)
            result = {"status": "ok", "time_s": time_s, "samples": [time_s] * 3, **encode(made.known), **changes}
            result.setdefault("check", {"ok": True, "max_err": 0.0, "shapes": []})
            records.append(identity.record("trial", template, config, result))
            writer.append(records[-1])
    return records
