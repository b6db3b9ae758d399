"""The GPU benchmark without a GPU: everything but the launches and the clocks."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from versus_gpu import candidates, checks, dry, lists, problems, program, rows, runner, shapes, table
from versus_gpu.building import BuildFailure, Built, Compilers, Job, emitted
from versus_gpu.device import Broken, Compared, Pace, Times
from versus_gpu.results import Results

import tensorir as tir
from tensorir.codegen.source import KernelLaunch, TensorMap

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
TARGET = "cuda -arch=sm_90a"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler to emulate with")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_benchmark", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEDULED = {name for name, o in tir.ops.OPERATORS.items() if not o.tensors}
"""The operators with templates of their own."""


def document(path):
    return json.loads(path.read_text())


# --- the dry run


@needs_compiler
def test_dry_run_from_end_to_end(script, tmp_path, capsys):
    out = tmp_path / "r.json"
    only = (
        r"^check mma.sync (tf32 nn 127|bf16 nt 127x80x48 alpha)|^square bf16 nt 72|^mobilenet fp32 2x8x10x10 k8 3x3 p"
    )
    only += r"|^resnet50 ((data|weight) bf16 2x8x10x10 k8 3x3|epilogue.*residual)|^experts"
    given = ["--dry", "--only", only, "--configurations", "1", "--out", str(out)]
    assert script.main(given) == 0
    found = document(out)
    assert {r["op"] for r in found["rows"]} == SCHEDULED
    assert [r["status"] for r in found["rows"]] == ["exact"] * 8
    assert {r["template"] for r in found["rows"]} == {
        "gpu_tile_wgmma",
        "gpu_tensor",
        "gpu_tile_mma",
        "gpu_tile_windows",
    }
    compared = [t for r in found["rows"] if not r["timed"] for t in r["tried"]]
    assert 0 < compared[0]["of_bound"] < 1, "normal numbers are compared as well"
    assert all(r["tried"] and r["wrong"] == 0 for r in found["rows"])
    assert all(r["errors"] == {"ours": 0.0} and r["cold"] == {} for r in found["rows"] if r["timed"])
    assert found["runs"][0]["tier"] == "quick"
    assert "8 of 8 rows exact, 0 wrong, 0 failed" in capsys.readouterr().out
    assert "| square bf16 nt 72x72x40 | exact | gpu_tile_wgmma |" in out.with_suffix(".md").read_text()

    assert {p.name for p in tmp_path.iterdir()} == {"r.json", "r.md"}

    before = found["rows"]
    assert script.main([*given, "--resume"]) == 0
    again = document(out)
    assert again["rows"] == before
    assert len(again["runs"]) == 2
    capsys.readouterr()
    assert script.main(["--show", str(out)]) == 0
    assert "8 of 8 rows exact" in capsys.readouterr().out


@needs_compiler
def test_dry_run_of_the_search(script, tmp_path):
    out = tmp_path / "r.json"
    given = ["--dry", "--tier", "tune", "--only", "llama", "--configurations", "2", "--out", str(out)]
    assert script.main(given) == 0
    (row,) = document(out)["rows"]
    assert [t["status"] for t in row["tried"]] == ["exact"] * 2
    assert {"registers", "spills", "shared_bytes", "screened_s"} <= set(row["tried"][0])


def test_out_of_time_starts_nothing(script, tmp_path):
    out = tmp_path / "r.json"
    assert script.main(["--dry", "--only", "^square", "--minutes", "0", "--out", str(out)]) == 0
    assert document(out)["rows"] == []


def test_without_a_device_it_says_so(script, tmp_path, monkeypatch, capsys):
    """Here: without torch, or without a driver. No child is started again and again."""
    monkeypatch.setitem(sys.modules, "torch", None)
    options = script.arguments(["--out", str(tmp_path / "r.json")])
    assert script.measure(options, 0.0) == 2
    assert "there is no device" in capsys.readouterr().out
    (run,) = document(tmp_path / "r.json")["runs"]
    assert "torch" in run["failed"]


# --- rows that fail, on a device without kernels


class FakeCase(dry.Case):
    def __init__(self, device, problem):
        self.device, self.problem, self.about = device, problem, {"sets": 2}

    def check(self, built):
        self.device.checks += 1
        what = self.device.plan.get(self.problem.name)
        if what == "wrong":
            return Compared(False, 3.0)
        if what == "launch" and self.device.checks == 1:
            raise RuntimeError("launch failed")
        return Compared(True)

    def errors(self, built):
        if self.device.plan.get(self.problem.name) == "errors":
            self.device.without = list(self.without)
            raise RuntimeError("no result")
        return {"ours": 1e-7}

    def screen(self, built):
        return 1e-3 / self.device.checks

    def compete(self, built, pace, cold):
        return Times({"ours": [2.0, 1.0, 3.0], "cublas": [3.0, 5.0, 4.0]}, {} if cold else {"triton": "missing"})


class FakeDevice(dry.Dry):
    """Builds anything; ``plan``: what befalls the problem of a name."""

    def __init__(self, plan, spills=0, shared=0, works=True):
        super().__init__()
        self.plan, self.spills, self.shared, self.works, self.checks = plan, spills, shared, works, 0
        self.without = []

    def built(self, job):
        if self.plan.get(job.problem.name) == "compile":
            raise BuildFailure("no such instruction")
        source = tir.codegen.source.Source("k", "cuda", "", (), ())
        return Built(source, spills=self.spills)

    def listed(self, problem, count, wait=True):
        return problem.template or "gpu_tensor", [{"n": n} for n in range(count)]

    def case(self, problem):
        if self.plan.get(problem.name) == "memory":
            raise MemoryError("out of memory")
        return FakeCase(self, problem)

    def healthy(self):
        return self.works


def made(device, tmp_path, found, crashes=()):
    results = Results(tmp_path / "r.json")
    results.document["crashes"] += crashes
    status = runner.run(found, device, results, rows.Plan(3, Pace(3)), time.time() + 60)
    return status, document(results.path) if results.path.exists() else None


def squares():
    return lists.problems("quick", "^square bf16")


def test_a_failing_row_is_recorded_and_the_run_goes_on(tmp_path):
    found = squares()
    assert len(found) == 5
    plan = dict(zip((p.name for p in found), ("compile", "wrong", "memory", "launch", ""), strict=True))
    device = FakeDevice({n: w for n, w in plan.items() if w != "launch"})
    status, doc = made(device, tmp_path, found)
    assert status == 1, "a kernel was wrong"
    assert [r["status"] for r in doc["rows"]] == ["failed", "wrong", "failed", "exact", "exact"]
    assert doc["rows"][0]["reason"] == "no such instruction"
    assert doc["rows"][1]["largest"] == 3.0
    assert "cold" not in doc["rows"][1], "what is wrong is not timed"
    assert "out of memory" in doc["rows"][2]["reason"]
    good = doc["rows"][4]
    assert good["best"] == good["tried"][2]["config"], "the fastest of the screening"
    assert good["cold"]["ours"]["median_s"] == 2.0
    assert good["cold"]["cublas"]["low_s"] == 3.0
    assert good["peers_failed"] == {"triton": "missing"}
    text = table.markdown(doc)
    assert "WRONG" in text
    assert "failed: square bf16 nt 4096x4096x4096: no such instruction" in text


def test_a_launch_that_fails_costs_one_configuration(tmp_path):
    problem = squares()[0]
    _, doc = made(FakeDevice({problem.name: "launch"}), tmp_path, [problem])
    assert [t["status"] for t in doc["rows"][0]["tried"]] == ["failed", "exact", "exact"]


def test_what_spills_or_does_not_fit_is_skipped(tmp_path):
    problem = squares()[0]
    _, doc = made(FakeDevice({}, spills=16), tmp_path, [problem])
    assert doc["rows"][0]["status"] == "failed"
    assert [t["reason"] for t in doc["rows"][0]["tried"]] == ["spills 16 bytes"] * (3 + rows.SPARE)


def test_a_broken_device_asks_for_a_new_process_that_leaves_the_configuration_out(tmp_path):
    problem = squares()[0]
    status, doc = made(FakeDevice({problem.name: "launch"}, works=False), tmp_path, [problem])
    assert status == runner.NEW_PROCESS
    assert doc["rows"] == []
    (crash,) = doc["crashes"]
    assert crash["row"] == problem.name
    assert "launch failed" in crash["reason"]
    _, doc = made(FakeDevice({}), tmp_path, [problem], [crash])
    assert [t["status"] for t in doc["rows"][0]["tried"]] == ["failed", "exact", "exact"]
    whole = {**crash, "config": None}
    _, doc = made(FakeDevice({}), tmp_path, [problem], [whole])
    assert doc["rows"][0]["status"] == "failed"


def test_a_library_that_breaks_the_device_is_left_out(tmp_path):
    """The row is made again without it; other figures are kept where one part fails."""
    problem = squares()[0]
    crash = {"row": problem.name, "config": None, "peer": "cublas", "reason": "illegal address"}
    device = FakeDevice({problem.name: "errors"})
    _, doc = made(device, tmp_path, [problem], [crash])
    (row,) = doc["rows"]
    assert row["status"] == "exact"
    failed = {"cublas": "ended the process: illegal address", "ours": "RuntimeError: no result", "triton": "missing"}
    assert row["peers_failed"] == failed
    assert row["cold"]["ours"]["median_s"] == 2.0
    assert device.without == ["cublas"]


def test_kernels_of_a_kind_that_keep_ending_processes_are_given_up(tmp_path):
    """Each costs seconds of a device: rows of other kinds are made instead."""
    found = lists.problems("check", "^check threads fp32 n. 127|^check mma.sync bf16 n. 127")
    stages = [p.group for p in found]
    crashes = [{"row": p.name, "config": {"n": n}, "peer": "", "reason": "hangs"} for p in found[:1] for n in range(4)]
    _, doc = made(FakeDevice({}), tmp_path, found, crashes)
    by = {stage: [r["status"] for r in doc["rows"] if r["group"] == stage] for stage in stages}
    assert set(by["check threads"]) == {"failed"}
    assert set(by["check mma.sync"]) == {"exact"}
    assert "given up: 4 kernels of its kind" in doc["rows"][0]["reason"]


def test_broken_goes_through_a_row():
    with pytest.raises(Broken):
        rows.Row(squares()[0], FakeDevice({squares()[0].name: "memory"}, works=False), rows.Plan(), print).make()


def test_lists_and_programs_are_made_in_processes_beside():
    compilers = Compilers("sm_90a", 1)
    try:
        good, bad = lists.problems("check", "^check threads fp32 n. 127x65x33 gpu_tile_warp")
        compilers.list_ahead([(good, TARGET, 2)])
        template, configs = compilers.listed(good, TARGET, 2)
        assert (template, len(configs)) == ("gpu_tile_warp", 2)
        compilers.ahead([Job(good, template, {**configs[0], "li": 3}, TARGET)])
        with pytest.raises(BuildFailure, match="li"):
            compilers.built(Job(good, template, {**configs[0], "li": 3}, TARGET))
        with pytest.raises(BuildFailure, match="gpu_nothing"):
            compilers.listed(replace(bad, template="gpu_nothing"), TARGET, 2)
    finally:
        compilers.close()


# --- tables


def row(name, ours, cold, warm=None, **more):
    def figures(library):
        return {n: {"median_s": t} for n, t in {"ours": ours, **library}.items()}

    return {"name": name, "group": "square", "op": "matmul", "kind": "bf16", "status": "exact", "timed": True,
            "template": "gpu_tensor",
            "flops": 2e12, "best": {"bm": 64}, "tried": [{"config": {"bm": 64}, "status": "exact", "registers": 80}],
            "cold": figures(cold), "warm": figures(warm or cold), "errors": {"ours": 1e-3}, **more}  # fmt: skip


def test_ratios_and_their_means():
    rows = [row("one", 2.0, dict(cublas=4.0, triton=3.0)), row("two", 1.0, dict(cublas=0.5), dict(cublas=1.0))]
    assert table.ratios(rows[0], "cold") == {"cublas": 2.0, "triton": 1.5, table.BEST: 1.5}
    by = {c["library"]: c for c in table.classes(rows)}
    assert by["cublas"]["cold"] == {"geomean": pytest.approx(1.0), "worst": (0.5, "two")}
    assert by["cublas"]["warm"]["geomean"] == pytest.approx(2**0.5)
    assert by[table.BEST]["cold"]["geomean"] == pytest.approx((1.5 * 0.5) ** 0.5)
    assert (by["triton"]["rows"], by["cublas"]["rows"]) == (1, 2)
    text = table.markdown({"runs": [{"device": "a GPU"}], "crashes": [], "rows": rows})
    assert "| square | bf16 | cublas | 2 | 1.00 | 0.50 | two | 1.41 | 1.00 | two |" in text
    assert "| matmul by gpu_tensor | bf16 | best library | 2 | 0.87 | 0.50 | two |" in text
    assert "| one | exact | gpu_tensor | bm=64 | 80 | 2000000.0 | 1.0 | cublas 2.00, triton 1.50 |" in text


def test_an_empty_document_has_a_table():
    assert "0 of 0 rows exact" in table.markdown(Results(Path("none")).document)


# --- the lists


def test_lists_are_well_formed():
    _, quick, full, tune = (lists.problems(tier) for tier in lists.TIERS)
    for found in (quick, full, tune):
        names = [p.name for p in found]
        assert len(set(names)) == len(names)
    assert 60 <= sum(p.timed for p in quick) <= 80
    assert {p.name for p in quick} <= {p.name for p in full}
    assert {p.kind for p in quick if p.timed} == set(problems.TIMED)
    assert {p.op for p in quick if p.timed} == SCHEDULED
    own = [p for p in full if p.template is None]
    assert {p.template for p in full if p.timed and p not in own} == {"gpu_winograd", "gpu_winograd_fused"}
    layers = [p for p in own if p.group == "resnet50" and p.kind in ("fp32", "bf16")]
    assert len(layers) == 2 * 23 * len(shapes.BATCHES), "fp32, and bf16 with channels last"
    assert sum(p.group.startswith("resnet50 weight") and p.kind == "bf16" for p in own) == 23
    assert len(shapes.DEEPBENCH) == 12
    several = {(p.op, p.kind): p for p in full if p.template is None}  # rules have something for any shape
    by_hand = {(p.template, p.kind): p for p in full if p.template}
    for p in (*several.values(), *by_hand.values()):
        assert not p.unsuited(p.target(TARGET)), p.name


def test_every_template_for_cuda_is_compared():
    """Of each operator, with each type that it multiplies by its own instructions; the simple ones first."""
    found = list(checks.checks())
    threads, cores = ("gpu_tile", "gpu_tile_warp"), ("gpu_tile_mma", "gpu_tile_wgmma")
    ruled = ("gpu_tile_warp", "gpu_tile_wgmma")
    assert {p.template for p in found} == {*threads, *cores, *ruled, "gpu_tensor", "gpu_tile_windows", *problems.WHOLE}
    assert {(p.op, p.template) for p in found} >= {
        *((op, t) for op in ("matmul", "grouped_matmul") for t in (*threads, *cores)),
        *(("conv2d", t) for t in ("gpu_tile", "gpu_tensor", *ruled)),
        *((f"conv2d_backward_{of}", t) for of in ("data", "weight") for t in ("gpu_tile", "gpu_tensor", ruled[-1])),
    }
    plain = {(p.kind, p.template) for p in found if p.op == "matmul"}
    assert plain >= {(kind, "gpu_tile_mma") for kind in problems.KINDS if kind != "fp32"}
    assert plain >= {(kind, "gpu_tile_wgmma") for kind in problems.KINDS if kind not in ("fp32", "3xtf32")}
    assert {p.arch for p in found} == {"", "sm_70", "sm_75"}
    first = [p.template for p in found]
    assert first.index("gpu_tile_warp") < first.index("gpu_tile_mma") < first.index("gpu_tile_wgmma")
    assert found[first.index("gpu_tile_wgmma")].parameters["tb"], "as tiles lie in memory"


def test_compared_configurations_have_the_knobs_that_are_asked_for_and_differ():
    for problem in {(p.group, p.knobs): p for p in checks.clusters()}.values():
        _, configs = candidates.configurations(problem, TARGET, 2)
        assert all(c[name] == value for c in configs for name, value in problem.knobs)
    problem = next(p for p in checks.tensor_cores() if p.kind == "bf16")
    _, (default, other) = candidates.configurations(problem, TARGET, 2)
    assert sum(default[k] != other[k] for k in default) >= len(default) // 2
    oldest = next(p for p in checks.tensor_cores() if p.arch == "sm_75")
    template, (config,) = candidates.configurations(oldest, oldest.target(TARGET), 1)
    assert "m16n8k8" in emitted(Job(oldest, template, config, oldest.target(TARGET))).text


def test_what_a_device_cannot_run_is_skipped(tmp_path):
    device = FakeDevice({})
    device.target = "cuda -arch=sm_80"
    found = lists.problems("check", "^check (wgmma|mma.sync) bf16 nt 127x80x48.*bias.relu")
    _, doc = made(device, tmp_path, found)
    assert [(r["status"], r["template"]) for r in doc["rows"]] == [
        ("exact", "gpu_tile_mma"),
        ("skipped", "gpu_tile_wgmma"),
    ]
    assert doc["rows"][1]["reason"] == "needs sm_90a"
    text = table.markdown(doc)
    assert "1 are not for this device" in text
    assert "| check wgmma | 0 | 0 | 0 | 1 | 0 |  |" in text


@pytest.mark.parametrize("only", ["square bf16 nn 8192", "square 3xtf32 nt 4096", "llama2-7b bf16 nt 16x12288",
                                  "deepbench fp32", "resnet50 fp32 16x3x224", "mobilenet fp32 16x512",
                                  "check mma.sync int8 tt"])  # fmt: skip
def test_configurations_are_legal_distinct_and_emitted(only):
    problem = lists.problems("quick", only)[0]
    template, found = candidates.configurations(problem, TARGET, 8 if problem.timed else 3)
    work, target = problem.workload(), tir.Target.parse(TARGET)
    space = work.templates[template].space_for(target)
    assert found[0] == space.default
    assert len(found) == (8 if problem.timed else 3)
    assert all(space.index(c) >= 0 for c in found)
    assert len({json.dumps(c) for c in found}) == len(found)
    for config in found[:2]:
        source = emitted(Job(problem, template, config, TARGET))
        assert source.kernels[0].shared_bytes <= target.shared_optin_bytes


def test_curated_configurations_of_warpgroups():
    """Large and small problems of every type that they multiply have some beside the default."""
    for only in ("square bf16 nn 8192", "square tf32 nt 4096", "square int8 nt 4096", "llama2-7b bf16 nt 16x12288"):
        problem = lists.problems("quick", only)[0]
        work = problem.workload()
        assert candidates.template_of(work, TARGET) == "gpu_tile_wgmma"
        space = work.templates["gpu_tile_wgmma"].space_for(tir.Target.parse(TARGET))
        assert len(candidates.curated(problem, "gpu_tile_wgmma", space)) >= 3


def test_first_configurations_are_of_several_kinds():
    """The default first, then in turn what is known to be good, turns of warpgroups too, and what the model expects."""
    problem = lists.problems("quick", "square bf16 nt 4096")[0]
    _, configs = candidates.configurations(problem, TARGET, 8)
    space = problem.workload().templates["gpu_tile_wgmma"].space_for(tir.Target.parse(TARGET))
    assert sum(c["pingpong"] for c in configs) == 2
    times = [space.expected_s(c) for c in configs]
    assert sum(t <= 1.15 * min(times) for t in times) >= 4
    skinny = lists.problems("quick", "skinny bf16 nt 128")[0]
    assert sum(c["splits"] > 8 for c in candidates.configurations(skinny, TARGET, 8)[1]) >= 3


def test_what_no_emulator_gets_through_is_shrunk():
    (large,) = lists.problems("quick", "resident bf16 nt 2056")
    assert large.workload().flops > problems.MOST_EMULATED
    dry = lists.problems("quick", "^check.* bf16", dry=True)
    assert all(p.workload().flops < problems.MOST_EMULATED for p in dry)


def test_the_search_asks_for_nothing_twice_and_for_neighbours():
    search = candidates.Search(squares()[0], TARGET, 8)
    first = search.batch([])
    second = search.batch(first[:1])
    both = first + second
    assert len({json.dumps(c, sort_keys=True) for c in both}) == 16
    near = [c for c in second if sum(c[k] != first[0][k] for k in c) == 1]
    assert len(near) >= 4
    assert np.all([search.space.index(c) >= 0 for c in both])


def test_kernels_get_addresses_and_tensor_maps(monkeypatch):
    maps = (TensorMap("A_map", "A", "float16", (64, 64), (64, 64)), TensorMap("B_map", "B", "float16", (64,), (64,)))
    kernel = KernelLaunch("k", ("B_map", "C", "A_map"), (1, 1, 1), (32, 1, 1), maps=maps)
    memory = {name: SimpleNamespace(data_ptr=lambda n=n: 4096 * n) for n, name in enumerate("ABC", 1)}
    monkeypatch.setattr(program, "encoded_map", lambda m, address: (m.name, address))
    assert program.arguments(kernel, memory) == (("B_map", 8192), 12288, ("A_map", 4096))


def test_importing_it_needs_no_gpu_package():
    modules = sorted({p.stem for p in (FOLDER / "versus_gpu").glob("*.py")} - {"__init__", "triton_matmul"})
    assert {"gpu", "peers", "program", "timing"} <= set(modules)
    text = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import run
for name in {modules!r}:
    __import__("versus_gpu." + name)
print([m for m in ("cupy", "torch", "triton", "skopt", "pyopencl", "ml_dtypes") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_kernels_are_made_with_what_a_cuda_image_has():
    """Without ml_dtypes, pyopencl and scikit-optimize, which that has not: configurations and texts all the same."""
    text = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import run
sys.modules.update(dict.fromkeys(("ml_dtypes", "pyopencl", "skopt", "sklearn", "scipy")))
from versus_gpu import building, candidates, checks
every = list(checks.checks())
for problem in {{**{{p.kind: p for p in every}}, **{{p.op: p for p in every}}}}.values():
    template, configs = candidates.configurations(problem, {TARGET!r}, 1)
    building.emitted(building.Job(problem, template, configs[0], {TARGET!r}))
    print(problem.kind)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert set(done.stdout.split()) == set(problems.KINDS)
