"""The other dialect of a schedule is text, or a refusal with a code: notebooks show it next to the first."""

import pytest

import tensorir as tir

WORKS = {
    "matmul": lambda: tir.ops.matmul(m=256, n=256, k=256, dtype="float16"),
    "conv2d": lambda: tir.ops.conv2d(n=1, c=64, h=28, w=28, k=64, r=3, s=3, pad=1, dtype="float16", layout="NHWC"),
    "winograd": lambda: tir.ops.conv2d(n=1, c=32, h=28, w=28, k=32, r=3, s=3, pad=1),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", WORKS)
def test_gpu_templates_have_opencl_text_or_are_refused(name, arch):
    target = tir.Target.parse(f"cuda -arch={arch}")
    work = WORKS[name]()
    codes = set()
    for template, t in work.templates.items():
        if t.suits(target):
            s = work.schedule(template=template, target=target)
            try:
                assert "__kernel" in s.source("opencl")
            except tir.LoweringError as error:
                codes.add(error.code)
    assert codes and codes <= {"codegen.intrinsic", "lower.roles"}
