"""What stands before a text where PoCL's compiler has skipped its header of 15,000 declarations."""

import re
from pathlib import Path

import numpy as np
import pytest
from runtime_sources import f32

from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import CompileError
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.opencl import NO_HEADER_OPTION, declarations, headers_of

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.cl"))
HEAD = "__kernel void k(__global const float* x, __global float* y) {\n  const int n = get_global_id(0);\n"


@pytest.fixture(scope="module")
def headers(device):
    if device.headers is None:
        pytest.skip("not the PoCL that pip brings")
    return device.headers


@pytest.fixture
def built(device, headers, monkeypatch):
    """The options of every program that is built."""
    seen, real = [], device._cl.Program.build

    def build(self, options=(), **more):
        seen.append(list(options))
        return real(self, options=options, **more)

    monkeypatch.setattr(device._cl.Program, "build", build)
    return seen


def source(line, top=""):
    launch = KernelLaunch("k", ("x", "y"), (8, 1, 1), (1, 1, 1))
    return Source(
        "k", "opencl", f"{top}{HEAD}{line}\n}}\n", (f32("x", (8,), "input"), f32("y", (8,), "output")), (launch,)
    )


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_emitted_text_needs_no_other_declarations(path, device, headers):
    text = path.read_text()
    device._cl.Program(device.context, declarations(headers, text) + text).build(
        options=[*device.options, NO_HEADER_OPTION], cache_dir=False
    )


@pytest.mark.parametrize("name", ["fmax", "convert_float8", "vload4", "barrier", "atomic_add", "mad24", "native_exp"])
def test_all_overloads_of_a_name_are_declared_as_they_were(name, headers):
    """With fewer of them another may be chosen, or one where the call has no meaning."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", (headers / "opencl-c.h").read_text(), flags=re.DOTALL)
    want = [" ".join(m.split()) for m in re.findall(rf"^[^#;\n]*\b{name}\s*\([^;]*;", plain, re.MULTILINE)]
    found = [x.strip() for x in declarations(headers, f"{name}(x)").splitlines() if re.search(rf"\b{name}\b", x)]
    assert want and [" ".join(x.split()) for x in found] == want
    assert not re.search(rf"\b{name}\b", declarations(headers, f"{name}s(x)"))


def test_conditions_around_declarations_stay(headers):
    """What the device lacks is not declared."""
    text = "#undef cl_khr_fp64\n__kernel void k(__global float* x) { x[0] = convert_float(x[0]); }"
    kept = declarations(headers, text)
    depth = deepest = 0
    for line in kept.splitlines():
        depth += line.startswith("#if") - line.startswith("#endif")
        deepest = max(deepest, depth)
        if "double" in line and "(" in line:
            assert depth >= 2
    assert depth == 0 and deepest >= 2


def test_results_are_those_of_the_whole_header(device, built, monkeypatch):
    line = "  y[n] = fma(exp(x[n]), convert_float_rtz(convert_int(rint(x[n]))), as_float(as_int(fabs(x[n])) + 1));"
    x = np.linspace(-3, 3, 8, dtype=np.float32)
    got = CompiledProgram(source(line), device)(x)
    assert [NO_HEADER_OPTION in options for options in built] == [True]
    monkeypatch.setattr(device, "headers", None)
    np.testing.assert_array_equal(got, CompiledProgram(source(line + " "), device)(x))
    assert [NO_HEADER_OPTION in options for options in built] == [True, False]


def test_names_that_a_text_makes_are_found_in_the_whole_header(device, built):
    x = np.ones(8, np.float32)
    got = CompiledProgram(source("  y[n] = OF(fm, ax)(x[n], 3.0f);", "#define OF(a, b) a##b\n"), device)(x)
    assert np.array_equal(got, 3 * x) and [NO_HEADER_OPTION in options for options in built] == [True, False]


def test_an_error_is_told_with_its_own_line(device):
    with pytest.raises(CompileError) as caught:
        CompiledProgram(source("  y[n] = fmaximum(x[n], 1.0f);"), device)
    assert (
        "line 3:" in str(caught.value) and "fmaximum" in str(caught.value) and NO_HEADER_OPTION not in caught.value.log
    )


def test_other_platforms_read_their_own_headers():
    assert headers_of("OpenCL 3.0 PoCL 5.0  Linux") is None and headers_of("OpenCL 1.2 (Oclgrind 21.10)") is None
