"""tensorir report: one page that needs nothing else, and in which nothing runs."""

import html
import json
import re

import pytest

from tensorir import ops
from tensorir.api.identity import compute_digest
from tensorir.cli import common
from tensorir.tune.log import Identity, LogWriter

pytest.importorskip("matplotlib")
DEVICE = {"name": "a <b>device</b>", "platform": "pocl", "driver": "3.0", "target": "opencl"}


def write(folder, workload, compute="0" * 32, knob="tile", template="t", reason="it $broke$ <i>", **device):
    me = Identity(workload, compute, {**DEVICE, **device}, {"tensorir": "0.1.0"})
    with LogWriter(folder, workload) as log:
        for n in range(1, 13):
            bad = {"status": "compile_error", "detail": {"message": reason}} if n % 4 == 0 else None
            ok = {"status": "ok", "time_s": n * 1e-4, "samples": [n * 1e-4], "source_sha256": "ab" * 32,
                  "check": {"ok": True, "max_err": 0.0, "shapes": []}}  # fmt: skip
            log.append(me.record("trial", template, {knob: n % 5, "order": "abc"[n % 3], "vector": n % 2}, bad or ok))


def test_a_page_of_a_log(cli, tmp_path):
    write(tmp_path / "logs", "conv2d n=1 c=16 h=14 w=14 k=16 pad=1")
    write(tmp_path / "logs", "mine.py:work a=1")
    code, out, err = cli("report", "logs", "-o", "page.html")
    assert (code, out.strip()) == (common.OK, "page.html"), err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 7  # three of each, and a roofline of the one that is an operator
    for said in ("Convergence", "Knobs", "Configurations of t", "Failures", "Roofline", "12, 9 valid", "compile_error",
                 "this version makes another one", "the workload is defined outside of tensorir"):  # fmt: skip
        assert said in html.unescape(page), said
    code, out, _ = cli("report", "logs", "-o", "one.html", "--workload", "mine.py:work a=1", "--json")
    assert code == common.OK
    (row,) = json.loads(out)["rows"]
    assert (row["workload"], row["trials"]) == ("mine.py:work a=1", 12)


def test_peaks_of_a_known_device(cli, tmp_path):
    device = {"name": "NVIDIA H100 80GB HBM3", "target": "cuda -arch=sm_90a"}
    write(tmp_path / "logs", "matmul m=512 n=512 k=512", **device)
    assert cli("report", "logs")[0] == common.OK
    assert "The line: peaks of H100" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_records_that_make_no_sense_here_leave_the_rest(cli, tmp_path):
    """A target of another version, and a time that no device takes, are valid records."""
    write(tmp_path / "logs", "matmul m=8 n=8 k=8")
    write(tmp_path / "logs", "matmul m=16 n=8 k=8", target="cuda -arch=sm_130")
    me = Identity("matmul m=32 n=8 k=8", "0" * 32, DEVICE, {"tensorir": "0.1.0"})
    check = {"ok": True, "max_err": 0.0, "shapes": []}
    with LogWriter(tmp_path / "logs", me.workload) as log:
        log.append(
            me.record(
                "trial", "t", {"a\x01": [1]}, {"status": "ok", "time_s": 5e-324, "samples": [5e-324], "check": check}
            )
        )
    code, _, err = cli("report", "logs")
    assert code == common.OK, err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "this version does not know its target" in page
    assert page.count("<h2>matmul") == 3


def test_nothing_in_it_runs_or_comes_from_elsewhere(cli, tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    write(tmp_path / "logs", f"conv2d {evil}", knob=evil[:40], template="<svg onload=alert(1)>", reason=evil)
    assert cli("report", "logs")[0] == common.OK
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|img|iframe|link|object)\b|<svg onload|javascript:", page, re.IGNORECASE)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(?!#)(?!\")\s*https?:", page)
    assert "default-src 'none'" in page


def test_the_source_of_the_best_is_shown(cli, tmp_path):
    work = ops.matmul(m=8, n=8, k=8)
    s = work.schedule(target="opencl")
    template = work.template_for("opencl")
    me = Identity(work.title, compute_digest(work), {**DEVICE, "target": s.target.text}, {"tensorir": "0.1.0"})
    ok = {"status": "ok", "time_s": 1e-5, "samples": [1e-5], "check": {"ok": True, "max_err": 0.0, "shapes": []}}
    with LogWriter(tmp_path / "logs", work.title) as log:
        config = work.templates[template].space_for(s.target).default
        log.append(me.record("trial", template, config, {**ok, "source_sha256": s.emitted().sha256}))
    assert cli("report", "logs")[0] == common.OK
    page = html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert s.emitted().text in page


def test_what_cannot_be_written_is_said(cli, tmp_path):
    write(tmp_path / "logs", "mine")
    code, out, err = cli("report", "logs", "-o", "/dev/null/x")
    assert (code, out) == (common.USAGE, "")
    assert "cannot write" in err
