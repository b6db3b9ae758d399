"""Programs of a folder in another language than the one that a kernel was made for."""

import json

import numpy as np
import pytest
import zoo
from test_folder import needs_device, run

import tensorir as tir
from tensorir.api.shipping import part_of_work
from tensorir.export.options import destinations, operator, programs
from tensorir.export.program import ExportError
from tensorir.target import Target

pytestmark = pytest.mark.usefixtures("unoptimised")


def test_a_schedule_is_lowered_again():
    s = zoo.product(13).schedule({"ti": 2, "tj": 4, "out": True}, target="opencl")
    made = s._part().for_target("c", "torch")
    assert made.source.language == "c" and made.trace == str(s.trace) and made.kind == "cpu"
    assert "const int64_t *block" in made.source.text and [p.name for p in made.source.params] == ["A", "B", "C"]
    assert made.for_target("c", "torch") is made and made.again("c -vector_bytes=16").source.language == "c"


def test_a_schedule_of_blocks_with_threads_is_refused_by_code():
    x = tir.placeholder((64,), name="x")
    s = tir.Schedule(tir.compute((64,), lambda i: x[i] + 1, name="y"), "cuda -arch=sm_80")
    s.bind("y.i", "thread.x")
    with pytest.raises(tir.LoweringError) as caught:
        s._part().for_target("c", "c")
    assert caught.value.code == "lower.c-threads"
    s = tir.ops.matmul(m=64, n=64, k=64).schedule(target="cuda -arch=sm_80")
    made = s._part().for_target("c", "c")
    assert made.source.language == "c" and made.about["template"], "the workload's default there"


def test_a_workload_has_its_default_there():
    """And says so: nobody tuned it."""
    work, target = tir.ops.matmul(m=64, n=64, k=64), Target.parse("cuda -arch=sm_80")
    name = work.template_for(target)
    config = work.templates[name].space_for(target).default
    made = part_of_work(work, name, config, target).for_target("c", "c")
    assert made.source.language == "c" and made.about["record"] is None
    assert made.about["template"] == work.template_for(Target.parse("c")) != name
    cpu = Target.parse("opencl -registers=16 -vector_bytes=32")
    name = work.template_for(cpu)
    values = {**work.templates[name].space_for(cpu).default}
    made = part_of_work(work, name, values, cpu).for_target("c", "c")
    assert made.about["template"] == name and made.about["config"] == values, "as it was chosen"


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_80"])
def test_another_kind_of_device_is_refused(target):
    work = tir.ops.matmul(m=64, n=64, k=64)
    s, parsed = work.schedule(target=target), Target.parse(target)
    other = "cuda" if target == "opencl" else "opencl"
    name = work.template_for(parsed)
    parts = s._part(), part_of_work(work, name, work.templates[name].space_for(parsed).default, parsed)
    for part in parts:
        with pytest.raises(ExportError) as caught:
            programs(part, ["cupy" if target == "opencl" else "pyopencl"])
        assert caught.value.code == "export.language" and other in str(caught.value)


def test_edited_text_has_no_other_language():
    s = zoo.product(13).schedule(target="opencl")
    edited = s.with_source(s.source() + "// mine")
    assert edited._part().source.text.endswith("// mine")
    with pytest.raises(ExportError, match="edited") as caught:
        edited._part().for_target("c", "c")
    assert caught.value.code == "export.language"


@needs_device
def test_fixed_inputs_stay_fixed():
    from test_folder import weighted

    w = np.random.default_rng(2).integers(-4, 5, (16, 12)).astype("f4")
    f = weighted().build()
    made = f.prepack(w=w)._lowered_again("c").source
    assert [(p.name, p.role) for p in made.params if p.role in ("input", "constant")] == [
        ("x", "input"), ("w", "constant"),
    ]  # fmt: skip
    assert next(p.data for p in made.params if p.name == "w") == w.tobytes()


@needs_device
def test_a_schedule_exports_without_a_device(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorir.api.schedule.open_device", None)
    s = zoo.product(13).schedule(target="opencl")
    where = s.export(tmp_path / "out", to="pyopencl", name="mine::product")
    manifest = json.loads((where / "manifest.json").read_text())
    assert manifest["targets"] == ["pyopencl"] and manifest["operator"] == "mine::product"
    assert run(where).stdout.startswith("selftest ok pyopencl: C, 2 cases, exact")


@pytest.mark.parametrize(
    ("name", "folder", "found"),
    [("a::b", "x", "a::b"), ("conv", "x", "tensorir::conv"), (None, "conv", "tensorir::conv"),
     (None, "my-conv.v1", "tensorir::my_conv_v1"), (None, "float", "tensorir::float_"), (None, "1x1", "tensorir::_1x1"),
     (None, "lambda", "tensorir::lambda_")],
)  # fmt: skip
def test_names_of_operators(name, folder, found):
    assert str(operator(name, folder)) == found


@pytest.mark.parametrize("name", ["", "a::b::c", "a::", "::b", "a b", "float", "a::lambda", "a.b", 3, "a::b\n"])
def test_names_that_are_none(name, tmp_path):
    with pytest.raises(ExportError) as caught:
        zoo.product(5).schedule().export(tmp_path / "out", name=name)
    assert caught.value.code == "export.name" and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["free", "y1", "gamma", "call", "door_arguments", "exp", "lambda"])
def test_a_name_is_no_function_that_is_there_already(name):
    """A second ``free`` would be called in place of the first, by everything in the process."""
    with pytest.raises(ExportError) as caught:
        operator(f"mine::{name}", "out")
    assert f"mine::{name}_" in str(caught.value) and operator(None, f"somewhere/{name}").name == f"{name}_"


def test_destinations_as_a_string_are_those_of_the_command_line():
    assert destinations("c, torch,c") == destinations(["c", "torch"]) == ("c", "torch")
    with pytest.raises(ExportError, match="no destination 'torhc'"):
        destinations("c,torhc")
