"""The CUDA text itself, run on CPU threads."""

import shutil

import pytest

import tensorir as tir

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def scheduled():
    return tir.ops.matmul(m=33, n=36, k=19).schedule(
        dict(ti=8, tj=8, ri=4, rj=4, bk=8, vector=4, fragments=1), target="cuda"
    )


def test_emitted_text_computes_what_was_declared():
    verdict = scheduled().check("emulate")
    assert verdict, verdict
    assert len(verdict.shapes) >= 2


def test_a_changed_index_in_the_text_is_wrong():
    s = scheduled()
    text = s.source().replace("threadIdx.x", "0", 1)
    assert text != s.source()
    assert not s.with_source(text).check("emulate")


def test_text_that_does_not_compile_is_a_compile_error():
    s = scheduled()
    with pytest.raises(tir.CompileError) as caught:
        s.with_source(s.source().replace("float c", "flaot c", 1)).check("emulate")
    assert caught.value.code == "emulate.compile"


def test_types_without_a_model_are_refused():
    s = tir.ops.matmul(m=8, n=8, k=8, dtype="float16").schedule(target="cuda")
    with pytest.raises(tir.CheckError) as caught:
        s.check("emulate")
    assert caught.value.code == "emulate.type"
