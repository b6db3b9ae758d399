"""No text can tell that it is emulated: what only the host has is not there, what only devices have is named."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_unseen_faults import kernel

import tensorir as tir
from tensorir.check.detection import is_anyones, not_run
from tensorir.errors import CompileError
from tensorir.runtime.cuda import compile_cubin

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
FOLDER = Path(tir.__file__).parent / "check" / "emulator"


@functools.cache
def text() -> str:
    return kernel("threads").source()


def edited(front: str = "", line: str = "") -> str:
    return front + "\n" + text().replace("  const int i_0 =", f"{line}\n  const int i_0 =", 1)


SKIPS = "\n  return;\n"
UNSEEN = {
    "a comment before it": f"/**/ #ifdef __GNUC__{SKIPS}#endif",
    "a digraph": f"%:ifdef __GNUC__{SKIPS}%:endif",
    "in two lines": f"#\\\nifdef __GNUC__{SKIPS}#endif",
    "in two lines, a word": f"#if\\\ndef __GNUC__{SKIPS}#endif",
    "a macro of devices": f"#ifndef NULL\n#define NULL 0\n#else{SKIPS}#endif",
    "another macro of devices": f"#ifndef CUDART_VERSION{SKIPS}#define CUDART_VERSION 1\n#endif",
    "a name of the emulator": f"#ifdef tir_ldmatrix_x4{SKIPS}#endif\n#undef tir_ldmatrix_x4\n#define tir_ldmatrix_x4 1",
    "assembly behind quotes": 'const char *s = "//"; asm volatile("bar.sync 1;");',
    "assembly in two lines": 'as\\\nm volatile("bar.sync 1;");',
    "another file": "#include <limits.h>",
    "other lines": '#line 1 "x"',
    "another meaning": "#undef __syncthreads\n#define __syncthreads() 0",
    "a builtin": "if (__builtin_constant_p(threadIdx.x)) return;",
    "a macro of compilers": "if (__linux__) return;",
    "a pragma": '_Pragma("GCC optimize(3)")',
    "a raw string": 'const char *s = R"(")"; // "',
}
PUT_TOGETHER = {
    "words of two": "#define J(a, b) a##b\n#define ASM J(as, m)",
    "words as text": "#define S(x) #x\n#define T(x) S(x)",
    "words of two, on several lines": "#define J(a, b) \\\n  a##b",
}


@pytest.mark.parametrize("name", UNSEEN)
def test_ways_to_tell_are_named(name: str) -> None:
    assert {p.code for p in not_run(edited(line=UNSEEN[name]))} == {"emulate.not-run"}


@pytest.mark.parametrize("name", PUT_TOGETHER)
def test_words_are_not_put_together(name: str) -> None:
    assert {p.code for p in not_run(edited(PUT_TOGETHER[name]))} == {"emulate.not-run"}


@pytest.mark.parametrize("front", [
    "#define TWO(x) \\\n  (2 * (x))", "#ifndef STEP\n#define STEP 1\n#endif", "#undef STEP",
    'const char *s = "#if \\" asm";', "// asm \\\n#ifdef __GNUC__", "#pragma unroll 1",
    "#define BOTH(...) f(__VA_ARGS__)", "const int n = 1'000'000;",
])  # fmt: skip
def test_plain_text_is_left_alone(front: str) -> None:
    assert not not_run(edited(front))


def test_what_does_not_compile_here_is_named_first() -> None:
    s = kernel("threads")
    told = s.with_source(edited(line=UNSEEN["a macro of compilers"])).check("emulate").problems
    assert {p.code for p in told} == {"emulate.not-run"}
    with pytest.raises(CompileError):
        s.with_source(edited(line="int rand = ;")).check("emulate")


@pytest.mark.parametrize("call", ["rand()", "__nanosleep(1)", "__shfl_down(1.0f, 1)"])
def test_functions_that_are_not_there_are_no_faults(call: str) -> None:
    verdict = kernel("threads").with_source(edited(line=f"{call};")).check("emulate")
    assert [p.code for p in verdict.problems] == ["emulate.unknown-function"] and call.split("(")[0] in str(verdict)
    assert not verdict and str(verdict).startswith("not judged: ")


@pytest.mark.parametrize("line", [
    "if (sizeof(long double) > 8) return;", f"#ifdef RAND_MAX{SKIPS}#endif\n#define RAND_MAX 1",
])  # fmt: skip
def test_what_only_the_host_has_is_not_there(line: str) -> None:
    assert kernel("threads").with_source(edited(line=line)).check("emulate")


def test_no_text_decides_about_macros_of_the_host() -> None:
    given = [f"-include{FOLDER / name}" for name in ("cuda.h", "hopper.h", "intrinsics.h")]
    command = [shutil.which("g++") or "clang++", "-std=c++17", "-undef", "-dM", "-E", *given, "-x", "c++", "/dev/null"]
    found = re.findall(r"#define (\w+)", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {"TIR_EMULATED", "threadIdx", "__shared__"} < set(found) and not [n for n in found if is_anyones(n)]
    assert is_anyones("STEP")


def test_no_text_decides_about_macros_of_devices() -> None:
    """NVRTC is asked for every name that it has a definition of somewhere, and for those of the host's C library."""
    nvidia = pytest.importorskip("nvidia")
    files = [f for folder in nvidia.__path__ for f in Path(folder).rglob("libnvrtc*so*")]
    names = {m.decode() for f in files for m in re.findall(rb"#\s*define\s+([A-Za-z]\w*)", f.read_bytes())}
    assert len(names) > 200
    headers = "".join(f"#include <{h}.h>\n" for h in ("limits", "float", "math", "stdint", "stdlib", "stdio", "stddef"))
    host = subprocess.run(
        [shutil.which("g++") or "clang++", "-std=gnu++17", "-dM", "-E", "-x", "c++", "-"],
        input=headers, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names |= set(re.findall(r"#define ([A-Za-z]\w*)", host.stdout))
    asked = "\n".join(f'#ifdef {n}\nextern "C" __global__ void has_{n}() {{}}\n#endif' for n in sorted(names))
    for front in ("", "#include <cuda_fp16.h>\n"):
        found = {k.removeprefix("has_") for k in compile_cubin(front + asked, "sm_90a").kernels}
        assert "NULL" in found and not [n for n in found if is_anyones(n)]


def test_functions_of_the_emulator_are_those_of_devices() -> None:
    """What it offers, and what begins with tir_."""
    command = [
        shutil.which("g++") or "clang++",
        "-std=c++17",
        "-undef",
        "-E",
        "-P",
        "-include",
        FOLDER / "cuda.h",
        "-x",
        "c++",
        FOLDER / "intrinsics.h",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {n for n in re.findall(r"\b(\w+) ?\(", made) if not n.startswith(("tir_", "__builtin", "__attribute"))}
    names -= {"for", "sizeof", "alignas", "alignof", "decltype", "static_assert", "if", "return", "__asm__"}
    names -= {"fields", "x", "y", "join", "float"}  # of its own constructors and conversions
    assert {"expf", "memcpy", "make_float4", "__dp4a"} <= names and "rand" not in names
    uses = "\n".join(f"using ::{n};" for n in sorted(names))
    compile_cubin(f"#include <cuda_fp16.h>\nnamespace uses {{\n{uses}\n}}", "sm_90a")
