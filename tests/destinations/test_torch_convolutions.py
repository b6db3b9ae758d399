"""Convolutions as operators of PyTorch: both layouts, groups and strides, with the kernels of both gradients."""

import pytest

import tensorir as tir
from tensorir.runtime import c_device

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

pytestmark = pytest.mark.usefixtures("unoptimised")
KINDS = {
    "NCHW": {"stride": 2, "pad": 1},
    "NHWC": {"stride": 2, "pad": 1, "layout": "NHWC", "groups": 2},
    "depthwise": {"pad": 1, "groups": 4},
}


def executables(given, device):
    """y, and those for the gradients of x, (2, 4, 5, 7) turned as the layout says, and of w."""
    more = {"groups": 1, "layout": "NCHW"} | given
    turn = (0, 1, 2, 3) if more["layout"] == "NCHW" else (0, 2, 3, 1)
    shapes = [tuple(s[n] for n in turn) for s in ((2, 4, 5, 7), (8, 4 // more["groups"], 3, 3))]
    x, w = (tir.placeholder(s, "float64", name=n) for s, n in zip(shapes, "xw", strict=True))
    y = tir.nn.conv2d(x, w, name="y", **more)
    d = tir.placeholder(y.shape, "float64", name="d_y")
    dx = tir.nn.conv2d_backward_data(d, w, (5, 7), name="dx", **more)
    dw = tir.nn.conv2d_backward_weight(x, d, (3, 3), name="dw", **more)
    target = "c" if device else "opencl"
    return [tir.Schedule(t, target).build(device) for t in (y, dx, dw)], shapes


def right(x, w, layout="NCHW", stride=1, pad=0, groups=1):
    """What PyTorch computes."""
    if layout == "NHWC":
        return right(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), "NCHW", stride, pad, groups).permute(0, 2, 3, 1)
    return torch.nn.functional.conv2d(x, w, stride=stride, padding=pad, groups=groups)


@pytest.mark.parametrize("device", [None, *(["c:0"] if c_device.compilers() else [])])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_torch(kind, device, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (y, dx, dw), shapes = executables(KINDS[kind], device)
    op = y.torch(f"tests::conv_{kind}_{'c' if device else 'any'}", backward={"x": dx, "w": dw})
    given = tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    assert torch.autograd.gradcheck(op, given, fast_mode=True)
    torch.library.opcheck(op.default, given)
    strided = tuple(t.detach().transpose(0, 3).contiguous().transpose(0, 3).requires_grad_() for t in given)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: op(x, w).sin().sum(), fullgraph=True, backend="inductor")
    want = torch.autograd.grad(right(*given, **KINDS[kind]).sin().sum(), given)
    for tensors in (given, strided):
        assert all(map(torch.allclose, torch.autograd.grad(compiled(*tensors), tensors), want))
