"""Records of logs from before templates redeclared have traces of other declarations: stale, and never loaded."""

import hashlib
import json

import pytest

import tensorir as tir
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.api.tuning import current
from tensorir.codec import encode
from tensorir.runtime.device import devices, open_device
from tensorir.tune.store import LogReader, LogWriter

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)


def work():
    return tir.ops.conv2d(c=8, h=8, w=8, k=16, pad=1)


def note(log, before):
    """A record of the Winograd template's default: as it was before there was a step, or as it is."""
    w, device = work(), open_device("opencl")
    identity = identity_of(w, describe(device))
    config = w.templates["cpu_winograd"].space_for(device.target).default
    made = prepare(w, "cpu_winograd", config, device.target)
    known = encode(made.known)
    assert known["trace"][0][:3] == ["redeclare", ["winograd"], {"tile": config["m"], "panel": 16, "of": "y"}]
    if before:
        text = "\n".join(x for x in made.source.text.split("\n") if not x.startswith("// s.redeclare("))
        known |= {"trace": known["trace"][1:], "source_sha256": hashlib.sha256(text.encode()).hexdigest()}
    result = {"status": "ok", "time_s": 1e-3, "samples": [1e-3] * 3, **known}
    with LogWriter(str(log), w.title) as writer:
        writer.append(identity.record("trial", "cpu_winograd", config, result))
    return identity


def test_a_trace_without_the_step_is_stale_and_not_loaded(tmp_path):
    note(tmp_path, before=True)
    with pytest.raises(tir.NotTuned, match="stale"):
        work().load(log=str(tmp_path))
    note(tmp_path, before=False)
    f = work().load(log=str(tmp_path))
    assert f.trace.startswith("s.redeclare('winograd'") and f.max_error == 1e-4
    tir.replay(work().outputs, json.dumps([r.trace for r in LogReader(str(tmp_path)).records()][-1]))


def test_a_search_that_resumes_leaves_it_out(tmp_path):
    identity = note(tmp_path, before=True)
    w, target = work(), open_device("opencl").target
    records = list(LogReader(str(tmp_path)).records())
    digests = lambda found: [prepare(w, r.template, r.config, target).source.sha256 for r in found]  # noqa: E731
    with pytest.warns(UserWarning, match="template cpu_winograd changed since: 1 configuration of the log stale"):
        assert current(records, identity, w.templates, digests) == []


def test_its_trace_is_refused_by_the_definition(tmp_path):
    note(tmp_path, before=True)
    (record,) = LogReader(str(tmp_path)).records()
    with pytest.raises(tir.ScheduleError):
        tir.replay(work().outputs, json.dumps(record.trace))
