"""What exported folders register with PyTorch: kernels in C written by hand, by Python and by the door in C."""

import contextlib
import ctypes
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from tensorir.export.shipped import torch_c, torch_kernel  # noqa: E402
from tensorir.export.shipped import torch_operator as shipped  # noqa: E402

HERE = Path(__file__).parent
DOOR = Path(shipped.__file__).with_name("door_torch.c")


def library(source, out, *flags):
    command = [
        CC,
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        *flags,
        source,
        "-o",
        out,
        "-ldl",
    ]
    subprocess.run(list(map(str, command)), check=True, timeout=120)
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The paths of the kernels' library and of the door's."""
    folder = tmp_path_factory.mktemp("built")
    return library(HERE / "torch_c.c", folder / "kernels.so"), library(DOOR, folder / "door.so", "-fexceptions")


@pytest.fixture(scope="module")
def kernels(built):
    return ctypes.CDLL(str(built[0]))


@pytest.fixture(scope="module", params=["python", "door"])
def doors(request, built):
    """By what kernels are called: None for Python."""
    return None if request.param == "python" else torch_c.Doors(ctypes.CDLL(str(built[1])))


def about(*arguments, **more):
    """A manifest's arguments: (name, dtype, shape) of inputs, numbers without a shape, a name with > is a result."""
    made = [
        {"name": name.strip(">"), "dtype": dtype, "shape": list(shape or ()), "align": 16 if shape else 1,
         "role": "output" if name[0] == ">" else "scalar" if shape is None else "input"}
        for name, dtype, shape in arguments
    ]  # fmt: skip
    return {"arguments": made, **more}


def kernel(kernels, name, *arguments, **more):
    said = about(*arguments, name=name, **more)
    return torch_kernel.Kernel(said, torch_c.CBody(getattr(kernels, name), said))


@pytest.fixture
def doubled(kernels, doors):
    return shipped.register(f"c{doors is not None:d}::doubled", [kernel(kernels, "doubled", ("x", "float32", (3, 4)),
                            (">y", "float32", (3, 4)))], doors=doors)  # fmt: skip


def test_the_door_is_what_runs(kernels, built):
    """Else everything here would test the kernel in Python twice."""
    doors = torch_c.Doors(ctypes.CDLL(str(built[1])))
    made = kernel(kernels, "doubled", ("x", "float32", (3, 4)), (">y", "float32", (3, 4)))
    op = shipped.register("c2::doubled", [made], doors=doors)
    made.body = None
    assert torch.equal(op(torch.ones(3, 4)), torch.full((3, 4), 2.0))
    assert len(doors.free) == doors.slots - 1
    shipped.register("c2::doubled", [kernel(kernels, "both", ("x", "float32", (6,)), ("b", "float32", (6,)),
                     (">y", "float32", (6,)), (">z", "float32", (6,)))], doors=doors)  # fmt: skip
    assert len(doors.free) == doors.slots - 1
    assert torch.equal(torch.ops.c2.doubled(torch.ones(6), torch.ones(6))[1], torch.zeros(6))


def test_tensors_are_worked_on_where_they_are(doubled, kernels):
    seen = (ctypes.c_void_p * 8).in_dll(kernels, "last_buffers")
    x = torch.randn(3, 4)
    y = doubled(x)
    assert torch.equal(y, 2 * x) and (seen[0], seen[1]) == (x.data_ptr(), y.data_ptr()) and not y._is_view()
    strided = torch.randn(4, 3).t()
    assert torch.equal(doubled(strided), 2 * strided) and seen[0] != strided.data_ptr()
    shifted = torch.randn(13)[1:].view(3, 4)
    assert torch.equal(doubled(shifted), 2 * shifted) and seen[0] % 16 == 0
    assert doubled(torch.randn(4, 3).t()).stride() == (4, 1)
    negative = torch.view_as_complex(torch.randn(3, 4, 2)).conj().imag
    assert negative.is_neg() and torch.equal(doubled(negative), 2 * negative)
    with torch.inference_mode():
        free = torch.randn(3, 4)
        assert torch.equal(doubled(free), 2 * free)


def test_opcheck_and_compile(doubled):
    x = torch.randn(3, 4)
    for given in (x, torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]):
        torch.library.opcheck(doubled.default, (given,))
    compiled = torch.compile(lambda x: doubled(x + 1).relu(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), (2 * (x + 1)).relu())


def test_misfits_are_refused_by_name(doubled):
    x = torch.randn(3, 4)
    for given, error, words in (
        (x.double(), TypeError, "x: expected dtype float32, got float64"),
        (x.t(), ValueError, r"x: expected shape \(3, 4\), got \(4, 3\)"),
    ):
        with pytest.raises(error, match=words):
            doubled(given)
        with torch.inference_mode(), pytest.raises(Exception, match=words.partition(", got")[0]):
            doubled(given.clone())
    with pytest.raises(RuntimeError, match="x requires a gradient and the operator has no backward for it"):
        doubled(x.requires_grad_())
    assert doubled(x.detach().to("meta")).device.type == "meta"


def test_threads_are_those_of_torch(doubled, kernels):
    threads, before = ctypes.c_int.in_dll(kernels, "last_threads"), torch.get_num_threads()
    x = torch.randn(3, 4)
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            assert torch.equal(doubled(x), 2 * x) and threads.value == n
    finally:
        torch.set_num_threads(before)


def test_four_threads(doubled):
    wrong = []

    def work(n):
        x = torch.full((3, 4), float(n))
        wrong.extend(n for _ in range(2000) if not torch.equal(doubled(x), 2 * x))

    started = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    assert not wrong


def test_several_results(kernels, doors):
    given = (
        ("l", "float32", (2, 3)),
        ("r", "float32", (2, 3)),
        (">sum", "float32", (2, 3)),
        (">less", "float32", (2, 3)),
    )
    op = shipped.register(f"c{doors is not None:d}::both", [kernel(kernels, "both", *given)], doors=doors)
    l, r = torch.randn(2, 3), torch.randn(2, 3)
    assert all(map(torch.equal, op(l, r), (l + r, l - r)))
    torch.library.opcheck(op.default, (l, r))


def test_numbers_of_every_type(kernels, doors):
    types = ["float64", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
    given = [("x", "float32", (1,)), *((f"n{n}", t, None) for n, t in enumerate(types)), (">y", "float64", (12,))]
    op = shipped.register(f"c{doors is not None:d}::numbers", [kernel(kernels, "numbers", *given)], doors=doors)
    values = [0.1, 0.5, -128, -32768, -(2**31), -(2**53), 255, 65535, 2**32 - 1, 2**53, True]
    assert op(torch.ones(1), *values).tolist() == [1.0, *map(float, values)]
    torch.library.opcheck(op.default, (torch.ones(1), *values))
    for n, value in ((2, 128), (3, -32769), (4, 2**31), (6, -1), (7, 65536), (8, 2**32), (9, -1)):
        wrong = [*values[:n], value, *values[n + 1 :]]
        with pytest.raises(ValueError, match=f"n{n}: expected a {types[n]}, got {value}"):
            op(torch.ones(1), *wrong)
        with torch.inference_mode(), pytest.raises(Exception, match=f"n{n}: expected a {types[n]}, got {value}"):
            op(torch.ones(1), *wrong)


def test_indices_are_checked(kernels, doors):
    given = (("table", "float32", (5, 3)), ("at", "int32", (4,)), (">rows", "float32", (4, 3)))
    gathers = [{"param": "at", "limit": 5, "into": "table"}]
    op = shipped.register(
        f"c{doors is not None:d}::rows", [kernel(kernels, "rows", *given, gathers=gathers)], doors=doors
    )
    table, at = torch.randn(5, 3), torch.tensor([4, 0, 2, 4], dtype=torch.int32)
    assert torch.equal(op(table, at), table[at.long()])
    for wrong in (5, -1):
        at[2] = wrong
        with pytest.raises(IndexError, match=rf"at: expected indices from 0 to 4 .*got {wrong} at \(2,\)"):
            op(table, at)
        with torch.inference_mode(), pytest.raises(Exception, match="at: expected indices from 0 to 4"):
            op(table.clone(), at.clone())


def test_gradients(kernels, doors):
    space = f"c{doors is not None:d}"
    size = ("float64", (6,))
    forward = kernel(kernels, "product", ("x", *size), ("w", *size), (">y", *size))
    backward = {
        "x": [kernel(kernels, "product", ("d_y", *size), ("w", *size), (">dx", *size))],
        "w": [kernel(kernels, "product", ("d_y", *size), ("x", *size), (">dw", *size))],
    }
    op = shipped.register(f"{space}::product", [forward], backward, doors)
    given = tuple(torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in "xw")
    assert torch.autograd.gradcheck(op, given)
    torch.library.opcheck(op.default, given)
    first, _ = torch.autograd.grad(op(*given).sum() + (given[0] ** 3).sum(), given, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{space}::product: no second derivative"):
        torch.autograd.grad(first.sum(), given)
    x, w = (t.detach() for t in given)
    assert torch.equal(torch.func.grad(lambda x: op(x, w).sum())(x), w)
    for mode in (contextlib.nullcontext, torch.inference_mode):
        with mode(), pytest.raises(Exception, match="x: expected"):
            op(None, w.clone())
    with pytest.raises(RuntimeError, match="x has a tangent"):
        torch.func.jvp(lambda x: op(x, w), (x,), (x,))
    compiled = torch.compile(lambda *a: op(*a).sin().sum(), fullgraph=True, backend="aot_eager")
    want = torch.autograd.grad((given[0] * given[1]).sin().sum(), given)
    assert all(map(torch.allclose, torch.autograd.grad(compiled(*given), given), want))


def test_an_error_of_the_kernel_is_told(kernels, doors):
    name = f"c{doors is not None:d}::broken"
    op = shipped.register(
        name, [kernel(kernels, "broken", ("x", "float32", (3,)), (">y", "float32", (3,)))], doors=doors
    )
    with pytest.raises(RuntimeError, match=r"broken: .*error 3"):
        op(torch.ones(3))


def test_results_and_inputs_without_elements(kernels, doors):
    name = f"c{doors is not None:d}::nothing"
    op = shipped.register(name, [kernel(kernels, "broken", ("x", "float32", (0, 4)), (">y", "float32", (0, 4)))],
                          doors=doors)  # fmt: skip
    assert op(torch.empty(0, 4)).shape == (0, 4)


def test_memory_is_given_back(doubled):
    """A handle that is kept for each call would keep its tensor."""
    x = torch.randn(3, 4)
    kept = StorageWeakRef(x.untyped_storage())
    results = [doubled(x) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(TypeError):
            doubled(x.double())
    last = StorageWeakRef(results[0].untyped_storage())
    del x, results
    assert kept.expired() and last.expired()


def test_a_set_of_shapes_is_one_operator(kernels, doors):
    name = f"c{doors is not None:d}::set"
    made = [kernel(kernels, "doubled", ("x", "float32", s), (">y", "float32", s)) for s in ((3, 4), (2, 6), (12,))]
    op = shipped.register(name, made, doors=doors)
    for shape in ((3, 4), (2, 6), (12,)):
        x = torch.randn(shape)
        assert torch.equal(op(x), 2 * x)
        torch.library.opcheck(op.default, (x,))
    with pytest.raises(ValueError, match=r"no kernel for x \(4, 3\); there are 3"):
        op(torch.ones(4, 3))
    with pytest.raises(TypeError, match="x: expected dtype float32, got int64"):
        op(torch.ones(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="same shapes"):
        shipped.register(name, [made[0], made[0]])
    with pytest.raises(ValueError, match="other arguments"):
        shipped.register(name, [made[0], kernel(kernels, "doubled", ("z", "float32", (2,)), (">y", "float32", (2,)))])


WORKER = '''
"""Registers an operator when it is imported, as an exported folder does; nothing of the package is loaded."""
import ctypes, importlib.util, sys
sys.modules["tensorir"] = None
import torch


def beside(path):
    spec = importlib.util.spec_from_file_location("anything", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


shipped, torch_kernel, torch_c = map(beside, {files!r})
said = dict(name="doubled", arguments=[dict(name=n, dtype="float32", shape=[3, 4], role=r, align=16)
                                       for n, r in (("x", "input"), ("y", "output"))])
body = torch_c.CBody(ctypes.CDLL({kernels!r}).doubled, said)
shipped.register("worker::doubled", [torch_kernel.Kernel(said, body)], doors=torch_c.Doors(ctypes.CDLL({door!r})))


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        return torch.ops.worker.doubled(torch.full((3, 4), float(n)))
'''

MAIN = """
import os
import signal
import sys
import torch
if __name__ == "__main__":
    import worker
    torch.set_num_threads(2)
    torch.ops.worker.doubled(torch.ones(3, 4))  # threads are there before a fork
    torch.ones(1 << 20).exp()
    child = sys.argv[1] == "fork" and os.fork()
    if child == 0 and sys.argv[1] == "fork":  # with as many threads as PyTorch had
        signal.alarm(30)
        os._exit(int(torch.ops.worker.doubled(torch.ones(3, 4)).sum()))
    assert not child or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 24
    loader = torch.utils.data.DataLoader(worker.Data(), num_workers=2, multiprocessing_context=sys.argv[1])
    assert [int(y[0, 0, 0]) for y in loader] == [2 * n for n in range(8)]
    print("right")
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(built, tmp_path, start):
    files = [shipped.__file__, torch_kernel.__file__, torch_c.__file__]
    text = WORKER.format(files=files, kernels=str(built[0]), door=str(built[1]))
    (tmp_path / "worker.py").write_text(text)
    (tmp_path / "main.py").write_text(MAIN)
    done = subprocess.run([sys.executable, "main.py", start], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    assert done.stdout == "right\n", done.stderr
