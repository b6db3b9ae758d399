"""A copy of a handle is another handle of the same kernel; a pickle holds data, and what is loaded builds again."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tensorir as tir

A = tir.placeholder((16, 12), name="A")
B = tir.placeholder((12, 8), name="B")
N = tir.dim("n", high=64)
K = tir.reduce_axis(12, name="k")
C = tir.compute((16, 8), lambda i, j: tir.sum(A[i, K] * B[K, j], axis=K), name="C")
X = tir.placeholder((N,), name="X")
ROW = np.arange(12, dtype="float32")
a, b = np.arange(192, dtype="float32").reshape(16, 12) % 5, np.arange(96, dtype="float32").reshape(12, 8) % 7


def again(value):
    return pickle.loads(pickle.dumps(value))


WAYS = [copy.copy, copy.deepcopy, again, lambda f: copy.deepcopy({"layers": [f]})["layers"][0]]


@pytest.fixture(scope="module")
def kernel():
    s = tir.Schedule(C)
    s.split("C.i", [None, 4])
    return s.build()


@pytest.mark.parametrize("way", WAYS)
def test_kernels(kernel, way, tmp_path):
    f = way(kernel)
    assert np.array_equal(f(a, b), a @ b) and np.array_equal(kernel(a, b), a @ b)
    assert f.trace == kernel.trace and f.source == kernel.source and f.device is kernel.device
    f.export(tmp_path / "folder")
    assert (f.program is kernel.program) == (way is not again), "a copy compiles nothing"
    g = way(tir.Schedule(tir.compute((N,), lambda i: X[i] + 1, name="Y")).build())
    assert all(np.array_equal(g(ROW[:n]), ROW[:n] + 1) for n in (3, 12))


def test_fixed_inputs():
    x, w = tir.placeholder((4,), name="x"), tir.placeholder((4,), name="w")
    twice = tir.compute((4,), lambda i: w[i] * 2, name="twice")
    s = tir.Schedule(tir.compute((4,), lambda i: x[i] * twice[i], name="Y"))
    s.run_once("twice")
    f = s.build().prepack(w=ROW[:4])
    for way in WAYS:
        assert np.array_equal(way(f)(ROW[:4]), 2 * ROW[:4] ** 2)


def test_launches(kernel):
    out = np.zeros((16, 8), "float32")
    model = {"x": a.copy(), "y": out, "run": None}
    model["run"] = kernel.bind(model["x"], b, out=out)
    for way in (copy.deepcopy, again):
        other = way(model)
        other["x"][:] = 1
        other["run"].refresh(), other["run"](), other["run"].wait()
        assert np.array_equal(other["y"], np.ones_like(a) @ b), "it is bound to the copies of the arrays"
        assert not out.any(), "and not to the first ones"
    same = copy.copy(model["run"])
    same()
    assert same.wait() is out and np.array_equal(out, a @ b)
    before = tir.placeholder((16, 8), name="before")
    second = tir.Schedule(tir.compute((16, 8), lambda i, j: before[i, j] + 1, name="D")).build()
    net = tir.sequence([kernel.bind(a, b, out=out), second.bind(out)])
    for way in WAYS:
        assert np.array_equal(way(net).run(), a @ b + 1)


@pytest.mark.parametrize("way", WAYS)
def test_declarations_and_schedules(way):
    s = way(tir.Schedule(C))
    s.split("C.j", [None, 4])
    assert s.check() and str(way(s)) == str(s) and way(s["C"]).axes == s["C"].axes
    assert way(s).with_source(s.source()).source() == s.source()
    assert len(tir.Schedule(C).trace) == 0
    D = way(C)
    assert (D is C) == (way is not again), "values that never change are their own copies"
    assert np.array_equal(tir.Schedule(D).build()(a, b), a @ b)
    assert way(A[0, 1] + 1).dtype == "float32" and way(tir.Target.parse("c")) == tir.Target.parse("c")


@pytest.mark.parametrize("way", WAYS)
def test_workloads(way):
    work = tir.ops.matmul(m=8, n=8, k=8)
    other = way(work)
    assert other.parameters == work.parameters and other.title == work.title
    other.templates["mine"] = next(iter(other.templates.values()))
    assert "mine" not in work.templates
    made = way(tir.Workload("mine", C))
    assert made.schedule(target="c").source() == tir.Workload("mine", C).schedule(target="c").source()
    assert np.array_equal(way(work.schedule().build())(np.eye(8, dtype="float32"), b[:8]), b[:8])


def test_another_process_builds_again(kernel, tmp_path):
    (tmp_path / "kernel").write_bytes(pickle.dumps([kernel, tir.Schedule(C), tir.ops.softmax("4x8")]))
    code = (
        "import pickle, numpy as np\n"
        f"f, s, w = pickle.load(open({str(tmp_path / 'kernel')!r}, 'rb'))\n"
        "a, b = np.ones((16, 12), 'float32'), np.ones((12, 8), 'float32')\n"
        "assert np.array_equal(f(a, b), a @ b) and np.array_equal(s.build()(a, b), a @ b) and w.name == 'softmax'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_models_of_torch(kernel, tmp_path):
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel, self.w = kernel, torch.nn.Parameter(torch.from_numpy(b), requires_grad=False)

        def forward(self, x):
            return self.kernel(x, self.w)

    x = torch.from_numpy(a)
    torch.save(copy.deepcopy(Layer()).kernel, tmp_path / "kernel.pt")
    for f in (copy.deepcopy(Layer()), torch.nn.Sequential(copy.deepcopy(Layer()))):
        assert np.array_equal(f(x).numpy(), a @ b)
    assert np.array_equal(torch.load(tmp_path / "kernel.pt", weights_only=False)(x, torch.from_numpy(b)), a @ b)


def deep(levels):
    x = tir.placeholder((4,), name="x")
    for n in range(levels):
        x = tir.compute((4,), lambda i, x=x: x[i] + 1, name=f"x{n}")
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda: tir.Workload("w", C, {"t": (lambda s, c: s, tir.Space(x=[1]))}),
        lambda: tir.Space(x=[1], where={"w": lambda c: True}), lambda: tir.combiner(lambda a, b: a + b, 0),
        lambda: tir.fusions(tir.nn.softmax(A, -1)), lambda: deep(600), lambda: [tir.Space(x=[1]), deep(600)],
        lambda: next(iter(tir.Workload("w", C).templates.values())),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused(make):
    with pytest.raises(tir.DeclarationError) as error:
        pickle.dumps(make())
    assert error.value.code == "argument.pickle"


def test_picklers_of_functions_are_let_do():
    cloudpickle = pytest.importorskip("cloudpickle")
    work = cloudpickle.loads(cloudpickle.dumps(tir.Workload("w", C, {"t": (lambda s, c: s, tir.Space(x=[1]))})))
    assert work.schedule().check()
