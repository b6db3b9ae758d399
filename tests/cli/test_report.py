"""tensorir report: one page that needs nothing else and opens with how good the result is."""

import base64
import hashlib
import html
import json
import re
import sys
from pathlib import Path

import pytest
from report_logs import DEVICE, final, fine, identity, keep, run

sys.path.insert(0, str(Path(__file__).parents[1] / "show"))

from browser import MISSING, browser, dom, measured

from tensorir import ops
from tensorir.api.identity import compute_digest, describe
from tensorir.cli import common, roofline, verb_report
from tensorir.runtime.device import open_device
from tensorir.tune.log import LogReader, RunIdentity, best
from tensorir.tune.summary import tuned

SHAPES = (
    "matmul m=512 n=512 k=512",
    "matmul m=256 n=256 k=256",
    "conv2d n=1 c=16 h=28 w=28 k=16 pad=1",
    "mine.py:f a=1",
)
needs_browser = pytest.mark.skipif(browser() is None, reason=MISSING)


def write(folder, workload, compute="0" * 32, knob="tile", template="t", reason="it $broke$ <i>", **device):
    """Twelve trials, every fourth of which fails."""
    me, records = identity(workload, compute, **device), []
    for n in range(1, 13):
        bad = {"status": "compile_error", "detail": {"message": reason}} if n % 4 == 0 else None
        config = {knob: n % 5, "order": "abc"[n % 3], "vector": n % 2}
        records.append(me.record("trial", template, config, bad or fine(n * 1e-4)))
    keep(folder, *records)


def made(cli, tmp_path, *options):
    code, _, err = cli("report", "logs", *options)
    assert code == common.OK, err
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def said(page):
    """Its text."""
    body = re.sub(r"<(style|script|title)\b.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", body)))


def test_a_page_of_a_log(cli, tmp_path):
    write(tmp_path / "logs", "conv2d n=1 c=16 h=14 w=14 k=16 pad=1")
    write(tmp_path / "logs", "mine.py:work a=1")
    code, out, err = cli("report", "logs", "-o", "page.html")
    assert (code, out.strip()) == (common.OK, "page.html"), err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 7  # three of each, and a roofline of the one that is an operator
    for words in ("Convergence", "Knobs", "Configurations of t", "Failures", "Roofline", "12 trials", "ok 9 compile 3",
                  "this version makes another one", "the workload is defined outside of tensorir",
                  "not timed the log has none of its final rounds"):  # fmt: skip
        assert words in said(page), words
    code, out, _ = cli("report", "logs", "-o", "one.html", "--workload", "mine.py:work a=1", "--json")
    assert code == common.OK
    (row,) = json.loads(out)["rows"]
    assert (row["workload"], row["trials"]) == ("mine.py:work a=1", 12)


def test_it_opens_with_how_good_the_result_is(cli, tmp_path):
    """What the run, log best and the page say of the library is the same."""
    keep(tmp_path / "logs", *run(identity(SHAPES[0]), 60))
    (t,) = tuned(LogReader(tmp_path / "logs").records())
    head = said(made(cli, tmp_path).split("<section")[0])
    assert t.ratio.steady and t.ratio.text("torch") in cli("log", "best", "--log", "logs")[1]
    config = " ".join(f"{k}={v}" for k, v in t.best.record.config.items())
    for words in ("1.0000 ms 0.9800 ms to 1.0300 ms", f"against torch {t.ratio.text()}",
                  f"{t.ratio.low:.3g} to {t.ratio.high:.3g}x torch", "torch 2.0000 ms [", t.gain.text(), "268 GF/s",
                  "60 trials in ", f"{t.best.record.template}: {config}"):  # fmt: skip
        assert words in head, words
    assert "unsteady" not in head
    (row,) = json.loads(cli("report", "logs", "--json")[1])["rows"]
    assert (row["baseline"]["name"], row["baseline"]["ratio"], row["time_s"]) == ("torch", t.ratio.value, 1e-3)
    assert row["default"]["ratio"] == t.gain.value and "samples" not in row["baseline"]


def test_what_is_unsteady_is_marked(cli, tmp_path):
    me = identity(SHAPES[0])
    trial = me.record("trial", "t", {"a": 1}, fine(1e-3))
    busy = {"seconds": 1.0, "others": 1.5, "stolen": 0.0, "cores": 2}
    keep(tmp_path / "logs", trial, *final(me, [trial], 0, busy=busy, flags=["unstable_timing"]))
    head = said(made(cli, tmp_path).split("<section")[0])
    for words in ("~1.0000 ms", "unstable timing", "~2x", "unsteady: other programs used 1.5 of 2 cores"):
        assert words in head, words


def test_the_same_best_everywhere(cli, tmp_path):
    """The fastest trial lost the final round: no part of the page takes it for the best."""
    keep(tmp_path / "logs", *run(identity(SHAPES[0]), 80))
    records = list(LogReader(tmp_path / "logs").records())
    (t,), (choice,) = tuned(records), best(LogReader(tmp_path / "logs"))
    fastest = min((r for r in t.trials if r.time_s), key=lambda r: r.time_s)
    assert t.best.record.id == choice.record.id != fastest.id
    page = made(cli, tmp_path)
    assert re.findall(r'tir-dim">trial (\w+)<', page) == [choice.record.id]
    ring = re.search(
        r'<circle class="tir-dot" data-t="(\d+)"[^>]*><title>[^<]*</title></circle><circle class="tir-ring"', page
    )
    marked = re.findall(r'class="tir-chosen" data-t="(\d+)"', page)
    picked = re.findall(r'<tr data-t="(\d+)" class="tir-picked"><td>(\d+)', page)
    assert int(ring[1]) == t.place and marked == [str(t.place)] and picked == [(str(t.place), str(t.place + 1))]
    assert page.count("tir-ring") == 2, "one, and its style"
    assert f"trial {t.trials.index(fastest) + 1} was faster than the best, trial {t.place + 1}" in said(page)
    assert "the best, 1.0000 ms in the final round" in said(page)
    assert "matmul m=512 n=512 k=512: 268.4 GFLOP/s" in page, "the roofline has the final round's time"


def test_failures_are_grouped_with_an_example_each(cli, tmp_path):
    keep(tmp_path / "logs", *run(identity(SHAPES[0]), 100))
    page = said(made(cli, tmp_path))
    (t,) = tuned(LogReader(tmp_path / "logs").records())
    bad = [r for r in t.trials if r.status == "compile_error"]
    words = (
        f"{len(bad)} compile_error compile_error: error: use of undeclared identifier 'x' tensorir repro {bad[0].id}"
    )
    assert words in page and "wrong_result: c[3, 7] is 12 and should be 13" in page


def test_hovering_says_time_verdict_and_configuration(cli, tmp_path):
    keep(tmp_path / "logs", *run(identity(SHAPES[0]), 30))
    titles = re.findall(r'data-t="\d+"[^>]*><title>(.*?)</title>', made(cli, tmp_path), re.S)
    assert any(re.match(r"trial \d+: [\d.]+ ms  \[.*\], right\n(first|second): knob_0=\d+ ", x) for x in titles)
    assert any(re.match(r"trial \d+: compile_error: .*\n", x) for x in titles)


def test_a_long_log_makes_a_page_that_can_be_sent(cli, tmp_path):
    for n, title in enumerate(SHAPES):
        keep(tmp_path / "logs", *run(identity(title), 300, seed=n))
    page = made(cli, tmp_path)
    assert len(page.encode()) <= 1_000_000
    assert page.count("<tr data-t=") == 1200, "all are in the tables"


def test_of_a_very_long_log_the_fastest_are_shown(cli, tmp_path):
    keep(tmp_path / "logs", *run(identity("matmul " + "m" * 80), 2500))
    page = made(cli, tmp_path)
    assert len(page.encode()) <= 1_000_000 and "1,300 others are left out" in said(page)


def test_nothing_from_elsewhere_runs_or_is_loaded(cli, tmp_path):
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    write(tmp_path / "logs", f"conv2d {evil}", knob=evil[:40], template="<svg onload=alert(1)>", reason=evil)
    page = made(cli, tmp_path)
    assert not re.search(
        r"<(img|iframe|link|object)\b|<svg onload|javascript:|\bimport\b|@import|url\(", page, re.IGNORECASE
    )
    tags = " ".join(re.findall(r"<[a-z][^<>]*>", page))
    assert set(re.findall(r"\s(?:src|href)\s*=\s*([^\s>]*)", tags)) == {'"#w0"'} and "onload" not in tags
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert "fetch" not in script and "XMLHttpRequest" not in script


# --- what a page may claim


def test_a_default_that_is_the_best_is_said_to_be(cli, tmp_path):
    me = identity(SHAPES[0])
    busy = {"seconds": 1.0, "others": 1.5, "stolen": 0.0, "cores": 2}
    keep(tmp_path / "logs", me.record("trial", "t", {"a": 1}, fine(1e-3, low_s=5e-4, high_s=2e-3, load=busy)))
    head = said(made(cli, tmp_path).split("<section")[0])
    assert "against the default 1.00x the default is the best" in head and "against the default other" not in head


def test_the_final_round_is_named_where_there_was_one(cli, tmp_path):
    """Of two equal trials none was faster; one that was is out, for it was wrong when it was run again."""
    me = identity(SHAPES[0])
    slow, fast = (me.record("trial", "t", {"a": a}, fine(1e-3 / a, source_sha256=f"{a:064x}")) for a in (1, 2))
    wrong = {"status": "wrong_result", "source_sha256": f"{2:064x}", "detail": {"where": "c[0] is 1"}}
    keep(tmp_path / "logs", slow, fast, me.record("trial", "t", {"a": 2}, wrong))
    page = said(made(cli, tmp_path))
    assert "trial 2 was faster than the best, trial 1. It failed when it was run again" in page
    assert "The final round" not in page and "finalists" not in page
    keep(tmp_path / "logs", *(me.record("trial", "t", {"a": a}, fine(1e-3)) for a in range(4)))
    assert "was faster than the best" not in said(made(cli, tmp_path))
    keep(tmp_path / "logs", *run(me, 20))
    page = said(made(cli, tmp_path))
    assert "those of finalists were measured again" in page and "The final round, which times" in page


def test_what_was_not_checked_is_said_to_be(cli, tmp_path):
    record = identity(SHAPES[0]).record("trial", "t", {"a": 1}, fine(1e-3, check=None))
    keep(tmp_path / "logs", record)
    page = said(made(cli, tmp_path))
    assert "no valid configuration" in page and "1 1.0000 ms 1.0000 ms to 1.0000 ms not checked t a=1" in page


def test_two_runs_of_a_workload_say_what_tells_them_apart(cli, tmp_path):
    """Other drivers and versions are other results, which would look the same."""
    for n, (driver, version) in enumerate([("3.0", "0.1.0"), ("3.0", "0.2.0"), ("<4.0>", "0.2.0")]):
        me = RunIdentity(SHAPES[0], "0" * 32, {**DEVICE, "driver": driver}, {"tensorir": version, "pocl": "7"})
        keep(tmp_path / "logs" / str(n), me.record("trial", "t", {"a": 1}, fine(1e-3)))
    keep(tmp_path / "logs", identity(SHAPES[1]).record("trial", "t", {"a": 1}, fine(1e-3)))
    page = said(made(cli, tmp_path))
    for words in ("3.0, tensorir 0.1.0", "3.0, tensorir 0.2.0", "<4.0>, tensorir 0.2.0"):
        assert page.count(f"on a <b>device</b>, driver {words}") == 2, "at the head and in its section"
    assert "pocl 7" not in page and page.count("driver") == 6


def test_values_are_called_the_same_in_figures_and_tables(cli, tmp_path):
    me = identity(SHAPES[0])
    values = [True, "日本", [1, 2]]
    keep(tmp_path / "logs", *(me.record("trial", "t", {"a": v, "b": n}, fine(1e-3)) for n, v in enumerate(values)))
    page = made(cli, tmp_path)
    for word in ("True", "日本", "[1,2]"):
        assert f'text-anchor="middle">{word}</text>' in page and f"<code>a={word} b=" in page


@pytest.mark.parametrize("bad", [False, True])
def test_of_one_workload_all_parts_are_shown_however_long_its_words(cli, tmp_path, bad):
    me, long = identity(SHAPES[0]), {f"knob_{k}": "日本語" * 4 for k in range(20)}
    failed = [{"status": "compile_error", "detail": {"message": f"error {n} {'é' * 200}"}} for n in range(900)]
    results = failed if bad else [fine(1e-3 + n * 1e-7) for n in range(900)]
    keep(tmp_path / "logs", *(me.record("trial", "t", {**long, "a": n, "b": n % 3}, r) for n, r in enumerate(results)))
    page = made(cli, tmp_path)
    assert 100_000 < len(page.encode()) <= 1_000_000
    assert "<h3>Trials</h3>" in page and page.count("<tr data-t=") > 100
    assert ("860 other reasons are left out" in said(page)) == bad


def test_of_very_many_workloads_some_are_named_only(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(verb_report, "MAX_WORKLOADS", 10)
    monkeypatch.setattr(verb_report, "MAX_PAGE_BYTES", 70_000)
    for n in range(13):
        keep(tmp_path / "logs", *run(identity(f"matmul m={64 + n} n=512 k=512"), 30, seed=n))
    page = made(cli, tmp_path)
    assert 70_000 < len(page.encode()) <= 75_000
    targets = set(re.findall(r'href="#(w\d+)"', page))
    assert targets == set(re.findall(r'<section id="(w\d+)"', page)) and len(targets) == 10
    assert "3 results with fewer trials are left out" in said(page)
    assert "left out of a page this long; tensorir report logs --workload 'matmul m=" in said(page)


# --- peaks


def test_a_data_sheet_is_not_a_measurement(cli, tmp_path):
    device = {"name": "NVIDIA H100 80GB HBM3", "target": "cuda -arch=sm_90a", "kind": "gpu"}
    write(tmp_path / "logs", "matmul m=512 n=512 k=512", **device)
    page = said(made(cli, tmp_path))
    assert "of the measured peak not measured the device is not here" in page
    assert "H100 SXM by its data sheet" in page and "Peaks: not measured; dashed, what the data sheet says" in page
    assert not re.search(r"\d% .{0,20} of (arithmetic|memory)", page)


def test_peaks_are_measured_once_where_the_device_is(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))
    about = describe(open_device(None))
    me = identity(SHAPES[0], **about)
    trial = me.record("trial", "t", {"a": 1}, fine(10.0))
    assert roofline.known_peaks(trial.device) is None
    keep(tmp_path / "logs", trial)
    assert "of the measured peak not measured --no-peaks" in said(made(cli, tmp_path, "--no-peaks"))
    page = said(made(cli, tmp_path))
    known = roofline.known_peaks(trial.device)
    assert known.flops > 1e8 and known.bytes_s > 1e8
    assert f"{known.flops / 1e9:,.4g} GFLOP/s measured" in page and f"{known.bytes_s / 1e9:.4g} GB/s measured" in page
    assert "of the measured peak 0%" in page
    elsewhere = identity(SHAPES[0], **{**about, "driver": "another"}).record("trial", "t", {}, fine(1e-3))
    assert roofline.measured_peaks(elsewhere) is None and roofline.known_peaks(elsewhere.device) is None


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("kernel", [roofline.arithmetic, roofline.reading])
def test_what_measures_peaks_computes_what_it_says(target, kernel, monkeypatch):
    from tensorir.target import Target

    monkeypatch.setattr(roofline, "REDUCTION_STEPS", 8)
    monkeypatch.setattr(roofline, "READ_BYTES", 1 << 22)
    schedule, amount = kernel(Target.parse(target))
    assert schedule.check() and amount > 0


def test_peaks_of_other_types_are_not_claimed(cli, tmp_path, monkeypatch):
    known = roofline.Peaks(1e12, 1e11)
    monkeypatch.setattr("tensorir.cli.roofline.known_peaks", lambda device: known)
    half = "matmul m=512 n=512 k=512 dtype=float16"
    keep(tmp_path / "logs", identity(half).record("trial", "t", {"a": 1}, fine(1e-3)))
    assert "not measured for float16" in said(made(cli, tmp_path))
    keep(tmp_path / "logs3", identity(SHAPES[0] + " precision=tf32").record("trial", "t", {"a": 1}, fine(1e-3)))
    assert cli("report", "logs3")[0] == common.OK
    assert "not measured for tf32" in said((tmp_path / "report.html").read_text(encoding="utf-8"))
    keep(tmp_path / "logs4", identity(SHAPES[0]).record("trial", "t", {"a": 1}, fine(1e-4)))
    assert cli("report", "logs4")[0] == common.OK
    page = said((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "of the measured peak not measured the best is above the peak of multiply-adds" in page
    keep(tmp_path / "logs2", identity(SHAPES[0]).record("trial", "t", {"a": 1}, fine(1e-3)))
    assert cli("report", "logs2")[0] == common.OK
    page = said((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "of the measured peak 27% 27% to 27% of arithmetic: 1.00 TF/s" in page


def test_what_a_busy_machine_shows_is_no_peak(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tensorir.cli.roofline.known_peaks", lambda device: roofline.Peaks(1e11, 1e10, "others took a core")
    )
    me = identity(SHAPES[0])
    keep(tmp_path / "logs", me.record("trial", "t", {"a": 1}, fine(4e-3)))
    page = said(made(cli, tmp_path, "--no-peaks"))
    assert "67% 67% to 67% of arithmetic: 100 GF/s at most: measured on a busy machine" in page
    assert "Meanwhile others took a core: they may be higher." in page
    keep(tmp_path / "logs", me.record("trial", "t", {"a": 1}, fine(1e-3)))
    page = said(made(cli, tmp_path, "--no-peaks"))
    assert "of the measured peak not measured the best is above what this busy machine shows" in page


def test_of_two_measurements_the_greater_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path))
    record = identity(SHAPES[0], **describe(open_device(None))).record("trial", "t", {}, fine(1e-3))
    for found in (roofline.Peaks(2.0, 1.0, "busy"), roofline.Peaks(1.0, 3.0, "busy"), roofline.Peaks(1.0, 1.0)):
        monkeypatch.setattr(roofline, "_measured", lambda device, found=found: found)
        roofline.measured_peaks(record)
    assert roofline.known_peaks(record.device) == roofline.Peaks(2.0, 3.0)


# --- in a browser

ONE_SCREEN = """<script>
const low = Math.max(...[...document.querySelectorAll(".tir-result *")].map(e => e.getBoundingClientRect().bottom));
document.title = String(low);</script>"""


def without_policy(page):
    """So that what measures may run."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)


@needs_browser
@pytest.mark.parametrize("count", [1, 4, 6])
def test_how_good_it_is_fits_the_first_screen(cli, tmp_path, count):
    for n in range(count):
        keep(tmp_path / "logs", *run(identity(f"matmul m={64 << n} n=512 k=512"), 20, seed=n))
    shown = dom(without_policy(made(cli, tmp_path)) + ONE_SCREEN)
    assert 50 < float(re.search(r"<title>([\d.]+)</title>", shown)[1]) <= 800


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 600])
def test_a_browser_finds_nothing_wrong(cli, tmp_path, width, dark):
    for n, title in enumerate(SHAPES):
        keep(tmp_path / "logs", *run(identity(title), 40, seed=n))
    found = measured(without_policy(made(cli, tmp_path)), dark, (width, 800))
    assert found["svgs"] >= 10 and found["tables"] >= 8 and found["mono"] == 0
    assert found["background"] == ["rgb(17, 17, 17)" if dark else "rgb(255, 255, 255)"]
    assert found["texts"] > 500 and found["contrasts"][0][0] >= 4.5, found["contrasts"]
    assert not found["wide"], found["wide"]
    assert found["page"][0] <= found["page"][1]


@needs_browser
def test_the_table_is_searched(cli, tmp_path):
    keep(tmp_path / "logs", *run(identity(SHAPES[0]), 90))
    page = made(cli, tmp_path)
    (t,) = tuned(LogReader(tmp_path / "logs").records())

    def rows(query):
        shown = dom(page, f"#q={query}")
        found = {int(n): "hidden" in more for n, more in re.findall(r'<tr data-t="(\d+)"([^>]*)>', shown)}
        assert len(found) == 90 and not re.search(r"<input[^>]*hidden", shown), "the policy lets the script run"
        return {n for n, hidden in found.items() if not hidden}

    wanted = {n for n, r in enumerate(t.trials) if r.config["knob_0"] == 1 and r.config["order"] == "b"}
    assert rows("") == set(range(90))
    assert rows("knob_0=1%20ORDER=b") == wanted and 0 < len(wanted) < 40, "16 is not 1"
    assert rows("undeclared") == {n for n, r in enumerate(t.trials) if r.status == "compile_error"}
    assert rows("nothing-has-this") == rows("100%") == set(), "a fragment that is no URI is a word"


@needs_browser
def test_a_trial_is_highlighted_in_all_figures_of_its_workload(cli, tmp_path):
    for title in SHAPES[:2]:
        keep(tmp_path / "logs", *run(identity(title), 30))
    page = made(cli, tmp_path)
    n = re.search(r'class="tir-line"[^>]* data-t="(\d+)"', page)[1]
    row = json.dumps(f'tr[data-t="{n}"]')
    over = f'document.querySelector({row}).dispatchEvent(new Event("mouseover", {{bubbles: true}}));'
    shown = dom(without_policy(page) + f"<script>{over}</script>")
    hot = re.findall(r'<(\w+) [^>]*class="[^"]*tir-hot"[^>]*>', shown)
    assert sorted(hot) == ["circle", "path", "tr"], "a dot, a line, a row, of one workload"


# --- records of other versions, sources


def test_records_that_make_no_sense_here_leave_the_rest(cli, tmp_path):
    """A target of another version, and a time that no device takes, are valid records."""
    write(tmp_path / "logs", "matmul m=8 n=8 k=8")
    write(tmp_path / "logs", "matmul m=16 n=8 k=8", target="cuda -arch=sm_130")
    me = identity("matmul m=32 n=8 k=8")
    keep(tmp_path / "logs", me.record("trial", "t", {"a\x01": [1]}, fine(5e-324)))
    page = made(cli, tmp_path)
    assert "this version does not know its target" in said(page)
    assert page.count("<h2>matmul") == 3


def test_the_source_of_the_best_is_shown(cli, tmp_path):
    work = ops.matmul(m=8, n=8, k=8)
    s = work.schedule(target="opencl")
    template = work.template_for("opencl")
    me = identity(work.title, compute_digest(work), target=s.target.text)
    config = work.templates[template].space_for(s.target).default
    keep(tmp_path / "logs", me.record("trial", template, config, fine(1e-5, source_sha256=s.emitted().sha256)))
    page = html.unescape(re.sub(r"</?span[^>]*>", "", made(cli, tmp_path)))
    assert s.emitted().text in page
    assert s.expected.brief in page and all(note in page for note in s.expected.notes)


def test_a_folder_whose_name_is_no_text(cli, tmp_path):
    write(tmp_path / "l\udcffg", "mine")
    code, _, err = cli("report", "l\udcffg")
    assert code == common.OK, err
    assert "Tuning l?g " in said((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_a_workload_that_the_log_has_not(cli, tmp_path):
    write(tmp_path / "logs", "mine")
    code, _, err = cli("report", "logs", "--workload", "another")
    assert code == common.USAGE and "there are no records of another in logs" in err and "tensorir log ls" in err


def test_what_cannot_be_written_is_said(cli, tmp_path):
    write(tmp_path / "logs", "mine")
    code, out, err = cli("report", "logs", "-o", "/dev/null/x")
    assert (code, out) == (common.USAGE, "")
    assert "cannot write" in err
