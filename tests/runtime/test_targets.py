import pytest

from tensorir.errors import DeclarationError
from tensorir.target import Target

TEXTS = [
    "opencl", "opencl -kind=gpu", "opencl:0:0", "opencl:pocl", "opencl:1 -kind=gpu -warp=64", "cuda", "cuda:0",
    "cuda -arch=sm_90a", "cuda:1 -arch=sm_120", "opencl -max_block=8,8,1 -fp16=1", "  cuda   -arch=sm_75 ",
    "c -precise_math=1", "opencl:pocl -precise_math=1",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips(text):
    target = Target.parse(text)
    assert Target.parse(target.text) == target
    assert Target.parse(target) is target


def test_presets():
    assert (Target.parse("opencl").kind, Target.parse("opencl").warp) == ("cpu", 1)
    assert Target.parse("opencl:pocl").device == "opencl:pocl"
    hopper = Target.parse("cuda -arch=sm_90a")
    assert (hopper.kind, hopper.sm, hopper.shared_bytes, hopper.shared_optin_bytes) == ("gpu", 90, 49152, 232448)
    assert Target.parse("cuda").arch == "sm_80"
    assert Target.parse("opencl -max_block=8,8,1").max_block == (8, 8, 1)


BAD = [
    "", "metal", "cuda:gpu", "cuda:0:0", "opencl:0:0:0", "cuda -kind=cpu", "opencl -kind=tpu", "opencl -arch=sm_80",
    "cuda -arch=sm_81", "cuda -arch=90", "cuda -arch=sm_80a", "opencl -speed=9", "opencl gpu", "opencl '",
    "opencl -warp=x", "opencl -max_block=1,2", "opencl -fp16=2", "opencl:../x", None, 3,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_bad_texts_are_refused_with_the_legal_ones(text):
    with pytest.raises(DeclarationError) as caught:
        Target.parse(text)
    assert caught.value.code == "target.unknown"
    assert caught.value.problems[0].hint
