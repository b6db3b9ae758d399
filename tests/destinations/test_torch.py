"""Executables as operators of PyTorch: what its own checks ask, gradients, threads, forks, and every refusal."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch_zoo

import tensorir as tir
from tensorir.errors import LaunchError, LaunchTypeError

torch = pytest.importorskip("torch", reason="the extra torch is not installed")

from tensorir.api.build import TorchError  # noqa: E402
from tensorir.export.shipped import torch_operator as shipped  # noqa: E402
from tensorir.runtime import c_device  # noqa: E402
from tensorir.runtime.pointers import OnPointers  # noqa: E402

pytestmark = pytest.mark.usefixtures("unoptimised")
WORKLOADS = torch_zoo.workloads()


@pytest.fixture(autouse=True, scope="module")
def _graphs_are_ones_own(tmp_path_factory):
    """Graphs that torch.compile keeps on disk name operators: those of another version of the tests are not wanted."""
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("graphs")))
        yield


def tensors(inputs, seed=1):
    return [torch.from_numpy(torch_zoo.small(p.shape, p.dtype, seed + n)) for n, p in enumerate(inputs)]


def close(made, work, given, error=None):
    """Whether these are the reference's results: exactly, or within an error relative to the largest."""
    want = np.asarray(work.reference(*(t.numpy() for t in given)))
    return np.allclose(made.numpy(), want, rtol=0, atol=(error or 0) * np.abs(want).max())


def products(dtype="float64"):
    """y = a @ b, and the executables for its gradients."""
    a, b = tir.placeholder((9, 7), dtype, name="a"), tir.placeholder((7, 5), dtype, name="b")
    dy = tir.placeholder((9, 5), dtype, name="d_y")
    da, db = tir.nn.matmul(dy, b, tb=True, name="da"), tir.nn.matmul(a, dy, ta=True, name="db")
    return [tir.Schedule(t).build() for t in (tir.nn.matmul(a, b, name="y"), da, db)]


@pytest.fixture(scope="module")
def product():
    """An operator with both gradients, in float64."""
    y, da, db = products()
    return y.torch("tests::product", backward={"a": da, "b": db})


def pair(*, grad=True, dtype=torch.float64):
    return tuple(torch.randn(s, dtype=dtype, requires_grad=grad) for s in ((9, 7), (7, 5)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_opcheck_of_operators(name):
    work, template = WORKLOADS[name]
    f = work.schedule(template=template).build()
    op = f.torch(f"tests::{name.replace('-', '_')}")
    given = tensors(f.emitted.inputs)
    made = op(*given)
    assert type(made) is torch.Tensor and close(
        made, work, given, work.allowed_error(template or next(iter(work.templates)))
    )
    torch.library.opcheck(op.default, tuple(given))


@pytest.mark.parametrize("make", [torch_zoo.several, torch_zoo.scaled, torch_zoo.gathered,
                                  torch_zoo.without_axes])  # fmt: skip
def test_opcheck_of_several_outputs_of_numbers_and_of_indices(make):
    f = tir.Schedule(make()).build()
    op = f.torch(f"tests::{make.__name__}")
    given = [
        {"factor": 2.5, "shift": -3, "on": True}[p.name]
        if p.role == "scalar"
        else torch.from_numpy(np.asarray(torch_zoo.small(p.shape, p.dtype, n) % 10))
        for n, p in enumerate(f.emitted.inputs)
    ]
    made = op(*given)
    want = f(*(t.numpy() if isinstance(t, torch.Tensor) else t for t in given))
    several = isinstance(want, tuple)
    for got, right in zip(made if several else (made,), want if several else (want,), strict=True):
        assert np.array_equal(got.numpy(), right)
    torch.library.opcheck(op.default, tuple(given))


def test_opcheck_with_gradients(product):
    given = pair()
    torch.library.opcheck(product.default, given)
    torch.library.opcheck(product.default, (given[0].detach(), given[1]))
    strided = torch.randn(14, 9, dtype=torch.float64)[::2].t().requires_grad_()
    torch.library.opcheck(product.default, (strided, given[1]))


def test_gradients_are_those_of_torch(product):
    p, q = pair()
    assert torch.autograd.gradcheck(product, (p, q))
    want = torch.autograd.grad((p @ q).sin().sum(), (p, q))
    assert all(map(torch.allclose, torch.autograd.grad(product(p, q).sin().sum(), (p, q)), want))
    (only,) = torch.autograd.grad(product(p, q.detach()).sum(), (p,))  # a gradient with strides of 0
    assert torch.allclose(only, (torch.ones(9, 5, dtype=torch.float64) @ q.T))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph_forward_and_backward(product, backend):
    p, q = pair()
    compiled = torch.compile(lambda p, q: product(p, q).sin().sum(), fullgraph=True, backend=backend)
    want = torch.autograd.grad((p @ q).sin().sum(), (p, q))
    assert all(map(torch.allclose, torch.autograd.grad(compiled(p, q), (p, q)), want))
    with torch.no_grad():
        assert torch.allclose(compiled(p, q), (p @ q).sin().sum())


def test_what_a_backward_takes_is_in_its_name():
    """Graphs that torch.compile keeps on disk name the operators of gradients, and give them arguments by position."""
    x, w, d = (tir.placeholder((4, 4), "float64", name=n) for n in ("x", "w", "d_y"))
    y = tir.compute((4, 4), lambda i, j: x[i, j] * w[i, j], name="y")
    for given in ((w, d), (d,)):
        dx = tir.compute((4, 4), lambda i, j, g=given: tir.exp(g[0][i, j]) * g[-1][i, j], name="dx")
        tir.Schedule(y).build().torch("tests::ordered", backward={"x": tir.Schedule(dx).build()})
        names = [n for n in shipped._registered if n.startswith("tests::ordered_grad")]
        assert names == [f"tests::ordered_grad_x_from_{'_'.join(t.name for t in given)}"]


def test_no_gradient_is_lost(product):
    p, q = pair()
    y, da, _ = products()
    half = y.torch("tests::half", backward={"a": da})
    with pytest.raises(LaunchError, match=r"b requires a gradient.*no backward") as caught:
        half(p, q)
    assert caught.value.code == "launch.gradient" and "test_torch.py" in caught.value.where
    assert half(p, q.detach()).requires_grad and not half(p.detach(), q.detach()).requires_grad
    with torch.no_grad():
        assert not half(p, q).requires_grad


def test_second_derivatives_are_refused_when_they_are_asked_for(product):
    p, q = pair()
    (first,) = torch.autograd.grad(product(p, q).sin().sum() + (p**3).sum(), p, create_graph=True)
    for last in (first.sum(), (first**2).sum()):
        with pytest.raises(LaunchError, match="tests::product: no second derivative") as caught:
            torch.autograd.grad(last, p, retain_graph=True)
        assert caught.value.code == "launch.second-derivative"
    (linear,) = torch.autograd.grad(product(p, q.detach()).sum() + (p**3).sum(), p, create_graph=True)
    assert torch.allclose(torch.autograd.grad(linear.sum(), p)[0], 6 * p)  # nothing goes through the operator


def test_transforms_of_torch_func(product):
    p, q = pair(grad=False)
    many, func = torch.randn(3, 9, 7, dtype=torch.float64), torch.func

    def ours(a, b=q):
        return product(a, b).sin().sum()

    def right(a, b=q):
        return (a @ b).sin().sum()

    for transform in (
        lambda f: func.grad(f)(p),
        lambda f: func.jacrev(lambda a: f(a) * a)(p),
        lambda f: func.vmap(func.grad(f))(many),
        lambda f: func.grad(lambda x: func.vmap(f)(x).sum())(many),
        lambda f: func.grad(lambda b: func.vmap(lambda a: f(a, b))(many).sum())(q),
        lambda f: func.vmap(func.grad(f), in_dims=1)(many.movedim(0, 1)),
    ):
        assert torch.allclose(transform(ours), transform(right))
    batched = torch.randn(4, 9, 5, dtype=torch.float64)
    a, b = pair()
    found = torch.autograd.grad(product(a, b), (a, b), batched, is_grads_batched=True)
    assert all(map(torch.allclose, found, (batched @ b.T, a.T @ batched)))
    with pytest.raises(LaunchError, match="over no items"):
        func.vmap(product)(many[:0], q.expand(0, 7, 5))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, p: torch.func.jvp(f, (p,), (p,)),
        lambda f, p: torch.func.jacfwd(f)(p),
        lambda f, p: torch.func.hessian(f)(p),
        lambda f, p: torch.func.jvp(torch.func.grad(f), (p,), (p,)),
        lambda f, p: torch.func.grad(lambda x: torch.func.jvp(f, (x,), (p,))[1])(p),
        lambda f, p: torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(p),
    ],
)
def test_derivatives_that_would_be_lost_are_refused(product, transform):
    p, q = pair(grad=False)
    with pytest.raises(LaunchError, match=r"a has a tangent|no second derivative"):
        transform(lambda a: product(a, q).sin().sum() + (a**3).sum(), p)


def test_tangents_are_refused_by_name(product):
    p, q = pair(grad=False)
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        with pytest.raises(LaunchError, match="tests::product: b has a tangent") as caught:
            product(p, forward.make_dual(q, q))
        assert caught.value.code == "launch.gradient"
        assert torch.allclose(product(p, q), p @ q)


def test_what_is_no_dense_tensor_is_refused_by_name(product):
    p, q = pair(grad=False)
    for wrong, words in (
        (p.to_sparse(), "layout torch.sparse_coo"),
        (p.to_sparse_csr(), "layout torch.sparse_csr"),
        (torch.nested.nested_tensor([p, p]), "a nested one"),
        (None, "None"),
    ):
        with pytest.raises(LaunchTypeError, match=f"a: expected a dense tensor, got .*{words}"):
            product(wrong, q)


def test_results_without_gradients_take_inputs_that_have_one():
    x = tir.placeholder((5, 7), name="x")
    k = tir.reduce_axis(7, name="k")
    at = tir.Schedule(tir.compute((5,), lambda i: tir.argmax(x[i, k], axis=k), name="at")).build()
    op, given = at.torch("tests::argmax"), torch.randn(5, 7, requires_grad=True)
    assert torch.equal(op(given), given.argmax(1).int()) and not op(given).requires_grad


def test_gradients_use_results_and_numbers():
    x, scale = tir.placeholder((6,), "float64", name="x"), tir.scalar("scale", "float64")
    y = tir.compute((6,), lambda i: tir.exp(x[i] * scale), name="y")
    given, dy = tir.placeholder((6,), "float64", name="y"), tir.placeholder((6,), "float64", name="d_y")
    dx = tir.compute((6,), lambda i: given[i] * dy[i] * scale, name="dx")
    op = tir.Schedule(y).build().torch("tests::growth", backward={"x": tir.Schedule(dx).build()})
    assert torch.autograd.gradcheck(lambda x: op(x, 0.5), (torch.randn(6, dtype=torch.float64, requires_grad=True),))


def test_several_outputs_have_a_gradient():
    n = 4
    a, b = tir.placeholder((n,), "float64", name="a"), tir.placeholder((n,), "float64", name="b")
    u, v = tir.compute((n,), lambda i: (a[i] * b[i], a[i] + 2 * b[i]), name="both")
    du, dv = (tir.placeholder((n,), "float64", name=f"d_{t.name}") for t in (u, v))
    da = tir.compute((n,), lambda i: du[i] * b[i] + dv[i], name="da")
    db = tir.compute((n,), lambda i: du[i] * a[i] + 2 * dv[i], name="db")
    backward = {"a": tir.Schedule(da).build(), "b": tir.Schedule(db).build()}
    op = tir.Schedule((u, v)).build().torch("tests::two", backward=backward)
    given = tuple(torch.randn(n, dtype=torch.float64, requires_grad=True) for _ in "ab")
    assert torch.autograd.gradcheck(op, given)
    (one,) = torch.autograd.grad(op(*given)[1].sum(), (given[0],))  # nothing comes in for the other
    assert torch.equal(one, torch.ones(n, dtype=torch.float64))


class Recorded(OnPointers):
    """A body that keeps the addresses it was given."""

    def __call__(self, buffers, *args, **kwargs):
        self.seen = list(buffers)
        super().__call__(buffers, *args, **kwargs)


def test_tensors_are_worked_on_where_they_are():
    work = tir.ops.matmul(m=12, n=10, k=8)
    f = work.schedule().build()
    op = f.torch("tests::in_place")
    kernel = shipped._registered["tests::in_place"].only
    kernel.body = Recorded(f.program)
    a, b = tensors(f.emitted.inputs)
    y = op(a, b)
    assert kernel.body.seen == [a.data_ptr(), b.data_ptr(), y.data_ptr()]
    # and OpenCL's buffers are that very memory: what is written there afterwards is seen without a copy
    _, shared, back = kernel.body._memories(kernel.body.seen)
    assert f.device.works_in_place is bool(shared) and not (shared and back)
    strided = torch.stack([a, a], 2)[:, :, 0]
    assert torch.equal(op(strided, b), y) and kernel.body.seen[0] not in (strided.data_ptr(), a.data_ptr())
    shifted = torch.empty(a.numel() + 1)[1:].view(a.shape).copy_(a)  # 4 bytes beyond what kernels can use
    assert torch.equal(op(shifted, b), y)


def devices():
    """The default, and the processor by a C compiler."""
    return [None, *(["c:0"] if c_device.compilers() else [])]


@pytest.mark.parametrize("device", devices())
def test_weights_are_packed_once_until_they_change(device):
    work = tir.ops.conv2d(n=1, c=8, h=6, w=7, k=8, r=3, s=3, pad=1, prepack=True)
    f = work.schedule(template="cpu_winograd", **({"target": "c"} if device else {})).build(device)
    op = f.torch("tests::packed")
    kernel = shipped._registered["tests::packed"].only
    assert kernel.packs is not None
    packs, pack = [], kernel.packs.pack
    kernel.packs.pack = lambda buffers: packs.append(1) or pack(buffers)
    run, kernel.body = kernel.body, kernel.body if device is None else None  # the dispatcher calls it
    x, w = tensors(f.emitted.inputs)

    def right(x=x, w=w):
        return close(op(x, w), work, (x, w), 1e-4)

    assert right() and right() and len(packs) == 1
    w.mul_(2)
    assert right() and right() and len(packs) == 2
    other = w + 1
    assert right(w=other) and right() and len(packs) == 3
    turned = w.transpose(2, 3)  # the same address and version, other strides
    assert right(w=turned) and len(packs) == 4
    for seed in range(20):  # freed, and soon another at the same address
        del other
        other = torch.from_numpy(torch_zoo.small(w.shape, "float32", seed)).clone()
        assert right(w=other)
    parameter = torch.nn.Parameter(other.clone(), requires_grad=False)
    for seed in range(20):  # the same object and version, other memory, soon at the same address
        parameter.data = torch.from_numpy(torch_zoo.small(w.shape, "float32", seed)).clone()
        assert right(w=parameter)
    del parameter
    gc.collect()
    assert right(w=w + 2)
    assert len(kernel.packs.kept) <= 4, "what was packed of freed weights is kept"
    kernel.body = run
    with torch.inference_mode():
        free = torch.ones(w.shape)
        for factor in (1, 3):  # there is no version that would tell
            free.fill_(factor)
            assert right(w=free)


def packing(name, device):
    """An operator that packs its weights, 16 x 16 x 16, as an executable and as that."""
    work = tir.ops.matmul(m=16, n=16, k=16, prepack=True)
    f = work.schedule(**({"target": "c"} if device else {})).build(device)
    return f.torch(f"tests::{name}_{'c' if device else 'any'}")


def mode(name):
    return torch.inference_mode() if name == "inference" else torch.set_grad_enabled(name == "grad")


@pytest.mark.parametrize("under", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("device", devices())
def test_weights_in_compiled_graphs_are_packed_as_they_are(device, under):
    """Code of compilers writes to memory that kernels have read without counting: into its own, and into inputs."""
    op = packing("in_graphs", device)

    def fast(mm, x, w):  # the memory of one product's weights is that of the next one's
        for _ in range(4):
            y = mm(x, w)
            w = w + y
        return y

    def written(mm, x, w):
        y = mm(x, w)
        w.mul_(2)
        return y

    x, w = torch.randint(-1, 2, (16, 16)).float(), torch.randint(-1, 2, (16, 16)).float()
    torch._dynamo.reset()
    compiled, writing = (torch.compile(f, fullgraph=True, backend="inductor") for f in (fast, written))
    with mode(under):
        mine, other = w.clone(), w.clone()
        for _ in range(2):
            assert torch.equal(compiled(op, x, w + 0), fast(torch.matmul, x, w))
            assert torch.equal(writing(op, x, mine), written(torch.matmul, x, other))
            assert torch.equal(op(x, mine), x @ other)


@pytest.mark.parametrize("device", devices())
def test_weights_that_optimizers_write_are_packed_again(device):
    """Fused ones write without counting."""
    op, x = packing("optimized", device), torch.randn(16, 16)
    for kind, more in ((torch.optim.SGD, {"fused": True}), (torch.optim.Adam, {"fused": True}), (torch.optim.Adam, {})):
        weight, frozen = (torch.nn.Parameter(torch.randn(16, 16)) for _ in "ab")
        optimizer = kind([weight], 0.5, **more)
        steps = optimizer.step, torch.compile(optimizer.step, backend="eager")
        kept = shipped._registered[op._qualified_op_name].only.packs.kept
        for step in (*steps, *steps):
            weight.grad = torch.ones(16, 16)
            with torch.no_grad():
                assert torch.allclose(op(x, weight), x @ weight, atol=1e-4)
                op(x, frozen)
            places = {id(packed) for _, _, packed in kept.values()}
            step()
            assert len(places & {id(packed) for _, _, packed in kept.values()}) >= 1, "others are packed once"


@pytest.mark.skipif(not c_device.compilers(), reason="there is no C compiler")
@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_of_the_device_c(name):
    """The dispatcher calls them: what Python would call instead is taken away."""
    work, template = WORKLOADS[name]
    f = work.schedule(template=template, target="c").build("c:0")
    called = f"tests::in_c_{name.replace('-', '_')}"
    op = f.torch(called)
    given = tensors(f.emitted.inputs)
    registered = shipped._registered[called]
    body, registered.only.body = registered.only.body, None
    if registered.only.packs is not None:
        assert registered.only.packs.pack == body.packing
        torch.library.opcheck(op.default, tuple(given))
        with torch.inference_mode():
            assert close(op(*given), work, given, 1e-4)
    error = work.allowed_error(template or next(iter(work.templates)))
    for _ in range(2):
        assert close(op(*given), work, given, error)


@pytest.mark.skipif(not c_device.compilers(), reason="there is no C compiler")
def test_constants_of_the_device_c_are_packed_once():
    work = tir.ops.matmul(m=12, n=16, k=8, prepack=True)
    f = work.schedule(target="c").build("c:0")
    a, b = tensors(f.emitted.inputs)
    op = f.prepack(b=b.numpy().copy()).torch("tests::constant")
    kernel = shipped._registered["tests::constant"].only
    packs, pack = [], kernel.packs.pack
    kernel.packs.pack = lambda buffers: packs.append(1) or pack(buffers)
    for factor in (1, 2):
        assert torch.equal(op(a * factor), factor * a @ b)
    assert len(packs) == 1


@pytest.mark.skipif(not c_device.compilers(), reason="there is no C compiler")
def test_the_last_places_of_a_door():
    """An operator with gradients takes several."""
    y, da, db = (tir.Schedule(f.outputs, target="c").build("c:0") for f in products())
    door = y.torch("tests::first_place") and shipped._registered["tests::first_place"].doors
    for free in (1, 2):
        taken, door.free[:] = list(door.free), door.free[:free]
        op = y.torch(f"tests::last_places_{free}", backward={"a": da, "b": db})
        assert not door.free and torch.autograd.gradcheck(op, pair())
        door.free[:] = taken[free:]


@pytest.mark.skipif(not c_device.compilers(), reason="there is no C compiler")
def test_more_kernels_than_a_door_has_places():
    x = tir.placeholder((4,), name="x")
    made = [tir.compute((4,), lambda i, n=n: x[i] + n, name="y") for n in range(3)]
    built = [tir.Schedule(y, target="c").build("c:0") for y in made]
    ops = [f.torch(f"tests::many{n}") for n, f in enumerate(built)]
    door = shipped._registered["tests::many2"].doors
    taken, door.free[:] = list(door.free), []
    ops.append(built[1].torch("tests::many3"))
    door.free[:] = taken
    assert shipped._registered["tests::many3"].doors is not door
    assert [int(op(torch.zeros(4))[0]) for op in ops] == [0, 1, 2, 1]


def test_arguments_that_do_not_fit_are_refused_by_name(product):
    p, q = pair(grad=False)
    for given, error, words in (
        ((p.float(), q), LaunchTypeError, "a: expected dtype float64, got float32"),
        ((p, q.T), LaunchError, r"b: expected shape \(7, 5\), got \(5, 7\)"),
        ((p.to("meta"), q), LaunchError, "a: expected a tensor on cpu, got one on meta"),
        ((p, q.to("meta")), LaunchError, "b: expected a tensor on cpu, got one on meta"),
    ):
        with pytest.raises(error, match=words):
            product(*given)
    with pytest.raises(Exception, match="a: expected dtype float64, got float32"):
        torch.compile(product, fullgraph=True, backend="eager")(p.float(), q)
    with torch._subclasses.FakeTensorMode() as mode:
        with pytest.raises(LaunchError, match="b: expected shape"):
            product(mode.from_tensor(p), mode.from_tensor(p))
        assert product(mode.from_tensor(p), mode.from_tensor(q)).shape == (9, 5)
    assert product(p.to("meta"), q.to("meta")).device.type == "meta"


def test_numbers_and_indices_are_checked():
    rows = tir.Schedule(torch_zoo.gathered()).build().torch("tests::rows")
    table = torch.randn(10, 8)
    with pytest.raises(LaunchError, match=r"at: expected indices from 0 to 9 .*got 10 at \(2,\)") as caught:
        rows(table, torch.tensor([0, 9, 10, 0, 0, -1], dtype=torch.int32))
    assert caught.value.code == "launch.index-range"
    numbers = tir.Schedule(torch_zoo.scaled()).build().torch("tests::numbers")
    with pytest.raises(LaunchError, match="shift: expected a int32, got 2147483648"):
        numbers(torch.ones(5, 7), 1.0, 2**31, True)


def test_tensors_that_only_look_different():
    x = tir.placeholder((4, 3), name="x")
    op = tir.Schedule(tir.compute((4, 3), lambda i, j: x[i, j] + 1, name="y")).build().torch("tests::views")
    base = torch.view_as_complex(torch.randn(4, 3, 2)).conj()
    negative = base.imag  # its sign is a bit of the tensor, not of its memory
    assert negative.is_neg() and torch.equal(op(negative), negative + 1)
    assert torch.equal(op(torch.randn(3).expand(4, 3) * 0), torch.ones(4, 3))
    assert torch.equal(op(torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False)), torch.ones(4, 3))
    mapped = torch.func.vmap(op)(torch.zeros(2, 4, 3))
    assert torch.equal(mapped, torch.ones(2, 4, 3))


def test_registering_again_replaces():
    x = tir.placeholder((4,), name="x")

    def made(n, name="y"):
        return tir.Schedule(tir.compute((4,), lambda i: x[i] + n, name=name)).build()

    ones, first = torch.ones(4), made(1).torch("tests::again")
    compiled = torch.compile(torch.ops.tests.again, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(ones), ones + 1)
    second = made(2).torch("tests::again")
    for op in (first, second, torch.ops.tests.again, compiled):
        assert torch.equal(op(ones), ones + 2)
    third = tir.Schedule(torch_zoo.several()).build().torch("tests::again")  # another signature
    assert len(third(torch.ones(6, 7), torch.ones(6, 7))) == 2
    assert torch.equal(made(3).torch("tests::again")(ones), ones + 3)


def test_names_that_others_have_are_refused():
    library = torch.library.Library("taken", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor")
    y, _, _ = products()
    with pytest.raises(TorchError, match="taken::op is registered already") as caught:
        y.torch("taken::op")
    assert caught.value.code == "torch.taken"
    for name in ("plain", "a::b::c", "a::", 5, "aten::mm", "with space::x"):
        with pytest.raises(TorchError) as caught:
            y.torch(name)
        assert caught.value.code == "torch.name"


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda y, da, db: {"c": da}, "no input that has a gradient; there are a, b"),
        (lambda y, da, db: {"b": da}, r"its result is float64\[9, 7\], b is float64\[7, 5\]"),
        (lambda y, da, db: {"a": 5}, "a kernel for each input"),
        (lambda y, da, db: da, "a kernel for each input"),
    ],
)
def test_backward_has_to_fit(backward, words):
    with pytest.raises(TorchError, match=words) as caught:
        products()[0].torch("tests::unfit", backward=backward(*products()))
    assert caught.value.code == "torch.backward"
    assert "tests::unfit" not in shipped._registered


def test_backward_takes_what_there_is():
    other = tir.placeholder((9, 7), "float64", name="other")
    g = tir.Schedule(tir.compute((9, 7), lambda i, j: other[i, j], name="g")).build()
    with pytest.raises(TorchError, match="takes other; there are d_y, y, a, b"):
        products()[0].torch("tests::unfit", backward={"a": g})


def test_four_threads(product):
    given = [pair(grad=False) for _ in range(4)]
    wrong = []

    def work(n):
        p, q = given[n]
        wrong.extend(n for _ in range(50) if not torch.allclose(product(p, q), p @ q))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_fork_is_refused_by_name(product):
    p, q = pair(grad=False)
    product(p, q)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            product(p, q)
            said = "no error"
        except BaseException as error:
            said = str(error)
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    assert b"device.forked" in os.read(read, 4096)
    os.waitpid(child, 0)


class Data(torch.utils.data.Dataset):
    """Items that an operator computes in the worker."""

    def __init__(self, op):
        self.op = op

    def __len__(self):
        return 6

    def __getitem__(self, n):
        p, q = pair(grad=False)
        return n, bool(torch.allclose(self.op(p, q), p @ q))


@pytest.mark.skipif(not c_device.compilers(), reason="there is no C compiler")
def test_the_device_c_goes_on_in_forked_workers():
    y, da, db = (tir.Schedule(f.outputs, target="c").build("c:0") for f in products())
    op = y.torch("tests::product_c", backward={"a": da, "b": db})
    given = pair()
    assert torch.allclose(op(*given), given[0] @ given[1]) and torch.autograd.gradcheck(op, given)
    torch.library.opcheck(op.default, given)
    loader = torch.utils.data.DataLoader(Data(op), num_workers=2, multiprocessing_context="fork")
    assert [(int(n), bool(right)) for n, right in loader] == [(n, True) for n in range(6)]


def test_import_and_a_machine_without_torch(tmp_path):
    code = """
import sys
import tensorir as tir
x = tir.placeholder((4,), name="x")
f = tir.Schedule(tir.compute((4,), lambda i: x[i] + 1, name="y")).build()
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    f.torch("tests::none")
except tir.TensorIRError as error:
    assert error.code == "torch.missing", error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.returncode == 0, done.stderr
