"""benchmarks/cpu: shapes, judging, the protocol, statistics, and what a report says. Nothing here measures speed."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from versus import data, document, ours, peers, picture, protocol, report, rounds, shapes, stats
from versus.handwritten import Handwritten

from tensorir.ops.shapes import RESNET50

RUN = Path(__file__).parents[2] / "benchmarks" / "cpu" / "run.py"
SMALL = shapes.Conv("small", "resnet50", 4, 9, 8, 3, 2, 1, times=2)
DEPTHWISE = shapes.Conv("small_dw", "mobilenet", 8, 6, 8, 3, 1, 1, groups=8)
PRODUCT = shapes.Matmul("product", "square", 16, 24, 8)


@pytest.fixture(scope="module")
def script():
    """run.py under a name of its own: other benchmarks have a run.py as well."""
    spec = importlib.util.spec_from_file_location("cpu_benchmark", RUN)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# --- what is computed


def test_the_sets_are_whole():
    found = shapes.all_problems()
    assert len({p.name for p in found}) == len(found)
    usual = shapes.chosen()
    count = {g: sum(p.group == g for p in usual) for g in report.CLASSES}
    assert count == {"square": 4, "bert": 3, "skinny": 6, "resnet50": 23, "mobilenet": 9, "vgg+alexnet": 7}
    resnet = [p for p in usual if p.group == "resnet50"]
    assert sum(p.times for p in resnet) == 53
    assert sum(p.times * p.flops for p in resnet) == pytest.approx(2 * 4.087e9, rel=1e-3)
    vgg = [p for p in found if p.name.startswith("vgg")]
    assert sum(p.times for p in vgg) == 13
    assert sum(p.times * p.flops for p in vgg) == pytest.approx(2 * 15.347e9, rel=1e-3)


def test_resnet_is_the_packages_resnet():
    mine = [(p.c, p.h, p.o, p.r, p.stride, p.pad) for p in shapes.all_problems() if p.group == "resnet50"]
    assert mine == [(s["c"], s["h"], s["k"], s["r"], s["stride"], s["pad"]) for s in RESNET50]


def test_problems_survive_json():
    for p in shapes.all_problems():
        assert shapes.from_json(json.loads(json.dumps(shapes.to_json(p)))) == p


@pytest.mark.parametrize("t", [SMALL, DEPTHWISE, shapes.Conv("g", "x", 4, 5, 6, 2, 1, 0, groups=2)])
def test_reference_is_the_definition(t):
    x, w = data.inputs(t)
    y = data.reference(t, x, w)
    padded = np.pad(x[0].astype(float), ((0, 0), (t.pad,) * 2, (t.pad,) * 2))
    each, outs = t.c // t.groups, t.o // t.groups
    for o, i, j in [(0, 0, 0), (t.o - 1, t.p - 1, t.p - 1), (t.o // 2, 1, 2)]:
        first = o // outs * each
        seen = padded[first : first + each, i * t.stride : i * t.stride + t.r, j * t.stride : j * t.stride + t.r]
        assert y[0, o, i, j] == pytest.approx((seen * w[o]).sum(), rel=1e-12)


def test_errors():
    exact = np.array([1.0, -4.0])
    assert data.error(np.array([1.0, -4.4]), exact) == pytest.approx(0.1)
    assert data.error(np.array([1.0, np.nan]), exact) == np.inf
    assert data.error(np.array([1.0]), exact) == np.inf


# --- taking turns


def test_batches_are_about_as_long_as_asked():
    now = [0.0]
    asked = []

    def many(n):
        asked.append(n)
        now[0] += 0.001 * n

    times = protocol.timed(many, 0.05, 0.004, clock=lambda: now[0])
    assert asked[2:] == [4] * len(times)
    assert times == pytest.approx([0.001] * 13)
    asked.clear()
    assert len(protocol.timed(many, 0.0, 0.0, clock=lambda: now[0])) == 3
    assert asked == [1] * 5


class Fake:
    """A competitor in this process."""

    def __init__(self, name, order, answers=None, wrong=False, dies_in=None):
        self.name, self.order, self.answers, self.wrong, self.dies_in = name, order, answers or {}, wrong, dies_in
        self.slots = 0

    def ask(self, **message):
        do = message["do"]
        if do in self.answers:
            return self.answers[do]
        if do == "prepare":
            self.problem = shapes.from_json(message["problem"])
            self.arrays = np.load(message["x"]), np.load(message["w"])
            return {"ok": True, "about": {"who": self.name}}
        if do == "run":
            self.order.append(self.name)
            self.slots += 1
            return {"error": "gone"} if self.slots == self.dies_in else {"times": [2.0, 1.0, 3.0]}
        y = data.reference(self.problem, *self.arrays)
        np.save(message["file"], y + (self.wrong and np.abs(y).max() * 2e-4))
        return {"ok": True}


def test_rounds_alternate_and_who_fails_is_named(tmp_path):
    order, slept = [], []
    field = [
        Fake("a", order),
        Fake("wrong", order, wrong=True),
        Fake("never", order, {"prepare": {"skip": "no such thing"}}),
        Fake("b", order),
        Fake("dies", order, dies_in=2),
        Fake("broken", order, {"prepare": {"error": "cannot"}}),
    ]
    outcome = rounds.compete(PRODUCT, field, rounds.Pace(rounds=3, rest=0.5), tmp_path, slept.append)
    assert order == ["a", "b", "dies", "dies", "b", "a", "a", "b"]
    assert slept == [0.5] * 8
    assert [e.name for e in outcome.entries] == ["a", "b"]
    assert outcome.entries[0].about == {"who": "a"}
    assert outcome.entries[0].error == 0
    assert outcome.skipped == {"never": "no such thing"}
    assert list(outcome.excluded) == ["wrong", "broken", "dies"]
    assert outcome.excluded["wrong"].startswith("wrong: error 2.0e-04")


def test_a_result_that_goes_bad_while_it_is_timed_is_left_out(tmp_path):
    one = Fake("a", [])
    run = one.ask

    def ask(**message):
        one.wrong = one.slots > 0
        return run(**message)

    one.ask = ask
    outcome = rounds.compete(PRODUCT, [one], rounds.Pace(rounds=1), tmp_path, lambda _: None)
    assert not outcome.entries
    assert list(outcome.excluded) == ["a"]


# --- processes


def test_a_peer_in_its_own_process(tmp_path):
    process = protocol.Process(protocol.Spec("numpy", "peers", ("numpy",)), 1, tmp_path)
    try:
        assert process.start()
        assert process.versions["numpy"] == np.__version__
        files = data.Files(PRODUCT, tmp_path)
        assert "nothing" in process.ask(do="run", seconds=0, batch=0)["error"]
        paths = {"x": str(files.x), "w": str(files.w)}
        assert process.ask(do="prepare", problem=shapes.to_json(PRODUCT), **paths)["ok"]
        assert len(process.ask(do="run", seconds=0, batch=0)["times"]) == 3
        assert process.ask(do="result", file=str(tmp_path / "y.npy"))["ok"]
        assert files.error_of(tmp_path / "y.npy") < 1e-6
        assert "convolution" in process.ask(do="prepare", problem=shapes.to_json(SMALL), **paths)["skip"]
        assert "error" in process.ask(do="prepare", problem=shapes.to_json(PRODUCT), x="nowhere.npy", w="")
    finally:
        process.close()


@pytest.mark.parametrize(
    ("module", "arguments", "reason"),
    [("handwritten", ("nowhere", "nchw"), "no workloads.py"), ("absent", (), "ended with 1 (")],
)
def test_who_is_missing_says_why(module, arguments, reason, tmp_path):
    process = protocol.Process(protocol.Spec(module, module, arguments), 1, tmp_path)
    assert not process.start()
    assert reason in process.missing
    assert reason in process.ask(do="run")["error"]


def test_one_that_hangs_is_ended(tmp_path):
    spec = protocol.Spec("numpy", "peers", ("numpy",))
    process = protocol.Process(spec, 1, tmp_path)
    assert process.start()
    process._patience = 0.2
    try:
        big = shapes.Matmul("big", "square", 64, 64, 64)
        files = data.Files(big, tmp_path)
        assert process.ask(do="prepare", problem=shapes.to_json(big), x=str(files.x), w=str(files.w))
        assert "no answer" in process.ask(do="run", seconds=30, batch=0)["error"]
    finally:
        process.close()


# --- ours


@pytest.mark.parametrize(("problem", "layout"), [(PRODUCT, ""), (SMALL, "NCHW"), (SMALL, "NHWC")])
def test_ours_untuned(problem, layout, tmp_path):
    x, w = data.inputs(problem)
    made = ours.Ours(ours.VARIANTS["timed"], layout, str(tmp_path))
    ready = made.prepare(problem, x, w)
    ready.many(2)
    assert data.error(ready.result(), data.reference(problem, x, w)) < 1e-6
    assert ready.about["origin"] == "default"
    assert made.versions["tensorir"]


def test_ours_takes_the_best_record_that_the_variant_admits(tmp_path):
    plain = ours.VARIANTS["timed"]
    work = ours.workload(PRODUCT, "", plain)
    record = work.tune(trials=2, budget="60s", log=str(tmp_path)).best
    x, w = data.inputs(PRODUCT)
    ready = ours.Ours(plain, "", str(tmp_path)).prepare(PRODUCT, x, w)
    assert (ready.about["origin"], ready.about["config"]) == ("log", record.config)
    other = ours.Variant("other", False, only=lambda name: name != record.template)
    try:
        ready = ours.Ours(other, "", str(tmp_path)).prepare(PRODUCT, x, w)
    except protocol.Skip:
        return  # there is only one template
    assert ready.about["template"] != record.template


def test_variants_that_the_operators_lack_are_named():
    odd = ours.Variant("odd", True, {"sorcery": 3})
    with pytest.raises(protocol.Skip, match="takes no sorcery"):
        ours.workload(SMALL, "NCHW", odd)
    unknown = ours.Variant("unknown", True, only=lambda name: name == "sorcery")
    with pytest.raises(protocol.Skip, match="the variant unknown"):
        ours.templates(ours.workload(SMALL, "NCHW", unknown), unknown, ours.Target.parse("opencl"))
    assert "timed" not in ours.unavailable()


# --- a folder of hand-written kernels

WORKLOADS = """
W = {"product": dict(M=16, N=24, K=8), "square_256": dict(M=1, N=1, K=1)}
CFG = {"product": {"packed1": ("plain", dict(turn=True))}, "square_256": {"packed1": ("plain", {})}}
"""
GENERATOR = '''
from types import SimpleNamespace
TEXT = """__kernel void mm(__global const float* A, __global const float* B, __global float* C) {{
  int i = get_global_id(0), j = get_global_id(1); float sum = 0;
  for (int k = 0; k < {K}; k++) sum += A[i * {K} + k] * B[j * {K} + k];
  C[i * {N} + j] = sum;
}}"""
def plain(M, N, K, turn):
    launches = [("mm", (M, N), ("X", "W", "Y"))]
    return SimpleNamespace(src=TEXT.format(K=K, N=N), launches=launches, pack=lambda B: B.T, scratch=0)
STYLE = {"plain": plain}
'''


def test_hand_written_kernels(tmp_path, monkeypatch):
    (tmp_path / "workloads.py").write_text(WORKLOADS)
    (tmp_path / "run.py").write_text(GENERATOR)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    for name in ("workloads", "run"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        one = Handwritten(tmp_path, "packed1")
    finally:
        for name in ("workloads", "run"):
            sys.modules.pop(name, None)
    x, w = data.inputs(PRODUCT)
    ready = one.prepare(PRODUCT, x, w)
    ready.many(1)
    assert data.error(ready.result(), data.reference(PRODUCT, x, w)) < 1e-6
    with pytest.raises(protocol.Skip):
        one.prepare(shapes.Matmul("unheard", "square", 1, 1, 1), x, w)
    with pytest.raises(ValueError, match="other sizes"):
        one.prepare(next(p for p in shapes.all_problems() if p.name == "square_256"), x, w)


# --- statistics


def test_intervals_hold_their_figure():
    slow, fast = [4.0, 4.4, 3.6, 4.0, 4.2], [2.0, 2.2, 1.8, 2.0, 2.1]
    one = stats.ratio(slow, fast)
    assert one.value == 2.0
    assert one.low <= 2.0 <= one.high
    assert stats.ratio(slow, slow) == stats.Interval(1.0, 1.0, 1.0)
    mean = stats.geomean_of([(slow, fast), (fast, slow)])
    assert mean.value == pytest.approx(1.0)
    assert stats.sums_of([(3, slow, fast), (1, fast, fast)]).value == pytest.approx(14 / 8)
    assert stats.median_of([1.0, 9.0, 2.0]).value == 2.0


# --- the report


def finished(names, problems=None):
    """A document in which each competitor takes the seconds of ``names``."""
    competitors = {}
    for name in names:
        side, _, rest = name.rpartition(":")
        label, _, layout = rest.partition("/")
        side = {"": "peer", "hand": "reference"}.get(side, side)
        if side == "reference":
            layout = "NCHW" if label.startswith("nchw") else ""
        c = {"side": side, "layout": layout, "label": label, "ahead": label != "timed", "versions": {}, "missing": None}
        competitors[name] = c
    doc = {"environment": {"cpu": "a core", "cores": 2, "started": "2026-01-01T00:00:00", "load": [0.1]},
           "settings": {"threads": 2}, "peak": {"gflops": 200.0, "slots_gflops": [190.0]},
           "competitors": competitors, "unavailable": {"sorcery": "no wand"}, "rows": []}  # fmt: skip
    for problem in problems or shapes.chosen():
        outcome = rounds.Outcome(problem, [], {"halide": "wrong: error 1"})
        for name, seconds in names.items():
            layout = competitors[name]["layout"]
            if competitors[name]["side"] != "peer" and bool(layout) != (problem.kind == "conv"):
                continue
            if "winograd" in name and not problem.winograd:
                continue
            times = [[seconds * f, seconds * f * 1.1, seconds * f * 0.9] for f in (1.0, 1.1, 0.9)]
            outcome.entries.append(rounds.Entry(name, times, 1e-6, {"algorithm": competitors[name]["label"]}))
        doc["rows"].append(document.row(outcome))
    return doc


EVERYONE = {
    "ort": 2.0,
    "numpy": 3.0,
    "ours:timed": 1.0,
    "ours:ahead": 0.5,
    "ours:direct/NCHW": 1.6,
    "ours:winograd/NCHW": 1.0,
    "hand:packed0": 1.0,
    "hand:nchw": 1.0,
}


def test_figures_of_a_whole_run():
    found = {f["title"]: f for f in report.figures_json(finished(EVERYONE))}
    best = found["ResNet-50 layers, best style, NCHW"]
    assert (best["workloads"], best["of"], best["floor"], best["goal"]) == (23, 23, 1.10, 1.30)
    assert best["value"] == pytest.approx(1.25 ** (19 / 23) * 2 ** (4 / 23))
    assert best["worst"]["ratio"] == pytest.approx(1.25)
    whole = found["ResNet-50, sum of all convolutions against ONNX Runtime, NCHW"]
    threes = 3 + 3 + 5 + 2
    assert whole["value"] == pytest.approx(53 * 2 / (threes * 1.0 + (53 - threes) * 1.6))
    assert (whole["workloads"], whole["of"]) == (53, 53)
    winograd = found["ResNet-50 3x3 stride 1, Winograd, NCHW"]
    assert (winograd["value"], winograd["worst_floor"]) == (pytest.approx(2.0), None)
    assert "1e-06" in winograd["remark"]
    assert found["ResNet-50 3x3 stride 1, direct, NCHW"]["value"] == pytest.approx(1.25)
    assert found["MobileNet v1 depthwise, NCHW"]["workloads"] == 9
    assert found["VGG + AlexNet, best style, NCHW"]["workloads"] == 7
    timed = found["matmul squares + BERT, all packing timed"]
    assert (timed["value"], timed["workloads"]) == (pytest.approx(2.0), 7)
    assert found["matmul with B prepacked, skinny included"]["value"] == pytest.approx(4.0)
    assert found["matmul with B prepacked, skinny included"]["workloads"] == 13
    assert not any("NHWC" in title for title in found)


def test_figures_say_what_the_peak_would_give():
    doc = finished(EVERYONE, shapes.chosen("r1_1x1_64_64_56|r1_3x3_64_64_56"))
    fastest = min(r["results"]["ours:direct/NCHW"]["fastest_s"] for r in doc["rows"])
    theirs = min(r["results"]["ort"]["fastest_s"] for r in doc["rows"])
    ours = doc["rows"][1]["results"]["ours:winograd/NCHW"]["fastest_s"]
    flops = doc["rows"][0]["flops"]
    doc["peak"]["gflops"] = 2 * flops / fastest / 1e9  # the 1x1 layer could take half its time
    found = {f["title"]: f for f in report.figures_json(doc)}
    best = found["ResNet-50 layers, best style, NCHW"]
    assert best["at_peak"] == pytest.approx((2 * theirs / fastest * theirs / ours) ** 0.5), "Winograd stays what it is"
    assert "at the FMA peak" in report.text(doc)
    doc["peak"]["gflops"] = flops / fastest / 2e9
    slower = {f["title"]: f for f in report.figures_json(doc)}["ResNet-50 layers, best style, NCHW"]
    assert slower["at_peak"] == pytest.approx(slower["fastest"]), "what is faster already stays so"
    doc["peak"] = None
    assert {f["at_peak"] for f in report.figures_json(doc)} == {None}


def test_the_hand_written_set_is_met_in_the_same_mode():
    doc = finished(EVERYONE)
    doc["competitors"]["hand:packed0"]["ahead"] = False
    found = {f["title"]: f for f in report.figures_json(doc)}
    assert found["its packed0"]["value"] == pytest.approx(1.0)
    assert found["its nchw"]["value"] == pytest.approx(1 / 1.6)
    whole = found["ours against the hand-written set, all its workloads"]
    assert (whole["workloads"], whole["of"]) == (13 + 39, 2 * (13 + 39))
    assert whole["worst"]["ratio"] == pytest.approx(1 / 1.6)


def test_text():
    text = report.text(finished(EVERYONE))
    assert "ours:sorcery      not available: no wand" in text
    assert "halide: wrong: error 1" in text
    assert "1.10 / 1.30: goal reached" in text
    assert "VGG-16 and AlexNet" in text
    assert "busy" not in text
    assert max(map(len, text.splitlines())) < 180


def test_a_part_of_the_workloads_reaches_nothing():
    text = report.text(finished(EVERYONE, shapes.chosen("r1_3x3|square_256")))
    assert "only 1 of 23" in text
    assert "reached" not in text


def test_a_run_without_peers_or_without_ours_is_reported():
    assert "none of ours" in report.text(finished({"ort": 1.0}, [PRODUCT]))
    assert "no peer" in report.text(finished({"ours:timed": 1.0}, [PRODUCT]))
    busy = finished({"ort": 1.0}, [PRODUCT])
    busy["environment"]["load"] = [1.5]
    assert "busy" in report.text(busy)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_picture(kind, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"x.{kind}"
    assert picture.draw(finished(EVERYONE, shapes.chosen("r1_3x3|square_256")), path)
    assert path.stat().st_size > 1000
    assert not picture.draw(finished({"ort": 1.0}, [PRODUCT]), path)


# --- the script


def test_who_takes_part(script):
    options = script.arguments(["--layout", "NHWC", "--reference", "somewhere", "--peer-python", "/usr/bin/other"])
    found = script.specs(options, list(ours.VARIANTS.values()), shapes.chosen())
    names = [s.name for s in found]
    assert len(names) == len(set(names))
    assert set(peers.PEERS) < set(names)
    assert {"ours:timed", "ours:ahead", "ours:direct/NHWC", "hand:packed1", "hand:nhwc_wino"} < set(names)
    assert not any("NCHW" in n or "nchw" in n for n in names)
    python = {s.name: s.python for s in found}
    assert (python["torch"], python["clblast"]) == ("/usr/bin/other", sys.executable)
    takes = {s.name for s in found if s.applies(PRODUCT)}
    assert takes & {"torch_cl", "ours:direct/NHWC", "hand:nhwc"} == set()
    only = {s.name for s in script.specs(options, [], [DEPTHWISE])}
    assert "hand:nhwc_wino" not in only
    assert "numpy" not in only


def test_an_unknown_peer_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.arguments(["--peers", "numpy,cublas"])
    assert "cublas is none of" in capsys.readouterr().err


def test_end_to_end(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "chosen", lambda only, extra: [PRODUCT])
    file = tmp_path / "out.json"
    flags = ["--peers", "numpy", "--rounds", "1", "--slot", "0", "--rest", "0", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["run.py", *flags, "--log", str(tmp_path)])
    assert script.main() == 0
    found = json.loads(file.read_text())
    assert {"numpy", "ours:timed"} <= set(found["rows"][0]["results"])
    assert found["peak"]["gflops"] > 0
    assert found["environment"]["cpu"]
    assert found["rows"][0]["results"]["ours:timed"]["error"] < 1e-6
    monkeypatch.setattr(sys, "argv", ["run.py", "--show", str(file)])
    assert script.main() == 0
    assert "product" in capsys.readouterr().out
