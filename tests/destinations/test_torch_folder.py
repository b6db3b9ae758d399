"""Exported folders as operators of PyTorch: imported, run, traced and refused with nothing of the package loaded."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch_zoo

import tensorir as tir

pytest.importorskip("torch", reason="the extra torch is not installed")
pytestmark = pytest.mark.usefixtures("unoptimised")

ALONE = """
import sys
sys.modules["tensorir"] = None
import functools, json, numpy as np, torch


def op_of(folder):
    name = json.load(open(f"{folder}/manifest.json"))["torch"]["op"]
    return functools.reduce(getattr, name.split("::"), torch.ops)
"""


def run(cwd, *words):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def python(code, cwd, *args):
    done = run(cwd, "-c", ALONE + code, *args)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def selftest(*folders):
    """Run the self-tests of several folders, for one import of torch."""
    code = """
import importlib.util, sys
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("selftest", f"{folder}/selftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.exit(1) if module.main(["torch"]) else None
"""
    return run(folders[0], "-c", code, *folders)


RUN = """
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
    made = np.load(f"{name}.npz")
    t = [torch.from_numpy(made[n]) if made[n].shape else made[n].item() for n in made.files]
    op = op_of(name)
    made = op(*t)
    several = isinstance(made, tuple)
    assert all(type(m) is torch.Tensor for m in (made if several else (made,))), name
    torch.library.opcheck(op.default, tuple(t))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")
    again = compiled(*t)
    assert all(map(torch.equal, again if several else (again,), made if several else (made,))), name
    np.savez(f"{name}_made.npz", *(m.numpy() for m in (made if several else (made,))))
"""


def programs():
    """Name -> executable, and the reference where there is one."""
    made = {}
    for name, (work, template) in torch_zoo.workloads().items():
        made[name.replace("-", "_")] = work.schedule(template=template).build(), work.reference
    for make in (torch_zoo.several, torch_zoo.scaled, torch_zoo.gathered):
        made[make.__name__] = tir.Schedule(make()).build(), None
    return made


def test_folders_of_every_kind(tmp_path):
    made = programs()
    given = {}
    for name, (f, _) in made.items():
        f.export(tmp_path / name, to=["torch"], name=f"zoo::{name}")
        given[name] = {
            p.name: np.array({"factor": 2.5, "shift": -3, "on": True}[p.name])
            if p.role == "scalar"
            else torch_zoo.small(p.shape, p.dtype, n) % (10 if p.dtype == "int32" else 8)
            for n, p in enumerate(f.emitted.inputs)
        }
        np.savez(tmp_path / f"{name}.npz", **given[name])
    done = selftest(*(tmp_path / name for name in made))
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [["selftest", "ok", "torch:"]] * len(made)
    python(RUN, tmp_path, *made)
    for name, (f, reference) in made.items():
        want = (reference or f)(*(a if a.shape else a.item() for a in given[name].values()))
        results = np.load(tmp_path / f"{name}_made.npz").values()
        for got, right in zip(results, want if isinstance(want, tuple) else (want,), strict=True):
            assert np.allclose(got, right, rtol=0, atol=np.abs(right).max() * 1e-4 * (name == "winograd")), name


def test_tensors_without_axes(tmp_path):
    f = tir.Schedule(torch_zoo.without_axes()).build()
    f.export(tmp_path / "total", to=["torch"])
    done = selftest(tmp_path / "total")
    assert done.returncode == 0, done.stderr
    code = """
import total
op, x = op_of("total"), torch.arange(37.0, dtype=torch.float64)
made = op(x, torch.tensor(3.0, dtype=torch.float64))
assert made.shape == () and made == 3 * x.sum()
"""
    python(code, tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("exported")
    f = tir.ops.matmul(m=6, n=5, k=4).schedule().build()
    for name in ("one", "two"):
        f.export(place / name, to=["torch", "source"])
    f.export(place / "same", to=["torch"], name="tensorir::one")
    return place


def test_what_a_folder_says(folder):
    manifest = json.loads((folder / "one" / "manifest.json").read_text())
    assert manifest["targets"] == ["torch", "source"] and manifest["torch"] == {"op": "tensorir::one"}
    assert "torch.ops.tensorir.one(a, b)" in (folder / "one" / "README.md").read_text()
    for name in ("door_torch.py", "torch_operator.py", "torch_kernel.py", "torch_gradients.py", "torch_c.py"):
        assert name in manifest["files"]


def test_folders_live_together_and_one_name_is_one_operator(folder):
    code = """
import one, two
a, b = torch.ones(6, 4), torch.ones(4, 5)
assert torch.equal(op_of("one")(a, b), op_of("two")(a, b)) and op_of("one")(a, b)[0, 0] == 4
import importlib
importlib.reload(one)
try:
    import same
except ValueError as error:
    print(error)
assert torch.equal(op_of("one")(a, b), op_of("two")(a, b))
"""
    assert "tensorir::one is registered already" in python(code, folder)


def test_a_folder_may_be_loaded_twice(folder):
    """As a package, and by its path for its own test: the operator is the same, and what has it goes on."""
    code = """
import one
op, (a, b) = op_of("one"), (torch.ones(6, 4), torch.ones(4, 5))
from one import selftest
assert not selftest.main(["torch"]) and not selftest.main(["torch"])
assert torch.equal(op(a, b), torch.full((6, 5), 4.0))
"""
    python(code, folder)


def test_misfits_and_gradients_are_refused(folder):
    code = """
import one
op, a, b = op_of("one"), torch.ones(6, 4), torch.ones(4, 5)
for given in ((a.double(), b), (a.t(), b), (torch.ones(6, 4, requires_grad=True), b)):
    try:
        op(*given)
    except Exception as error:
        print(type(error).__name__, error)
with torch.no_grad():
    assert op(*given)[0, 0] == 4
"""
    lines = python(code, folder).splitlines()
    assert lines[0] == "TypeError a: expected dtype float32, got float64"
    assert lines[1] == "ValueError a: expected shape (6, 4), got (4, 6)"
    assert lines[2].startswith("RuntimeError tensorir::one: a requires a gradient")


def test_without_torch_a_folder_imports_all_the_same(folder):
    code = "import sys; sys.modules['torch'] = None; import one; print(one.Program)"
    done = run(folder, "-c", code)
    assert done.returncode == 0 and "Program" in done.stdout, done.stderr
    hidden = "import sys; sys.modules['torch'] = None; import selftest; sys.exit(selftest.main(['torch']))"
    done = run(folder / "one", "-c", hidden)
    assert done.returncode == 1 and "torch" in done.stderr


def test_a_changed_byte_fails_the_self_test(folder, tmp_path):
    f = tir.ops.matmul(m=6, n=5, k=4).schedule().build()
    f.export(tmp_path / "bad", to=["torch"])
    manifest = json.loads((tmp_path / "bad" / "manifest.json").read_text())
    text = tmp_path / "bad" / manifest["source"]
    content = bytearray(text.read_bytes())
    content[len(content) // 2] ^= 1
    text.write_bytes(content)
    done = selftest(tmp_path / "bad")
    assert done.returncode == 1 and "was changed" in done.stderr


def test_workers_started_by_spawn_import_the_folder(folder):
    (folder / "data.py").write_text(
        "import one, torch\n\n\nclass Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 4\n\n"
        "    def __getitem__(self, n):\n"
        "        return torch.ops.tensorir.one(torch.full((6, 4), 1.0 * n), torch.ones(4, 5))\n"
    )
    (folder / "main.py").write_text(
        "import sys\nsys.modules['tensorir'] = None\nimport torch, data\n\nif __name__ == '__main__':\n"
        "    loader = torch.utils.data.DataLoader(data.Data(), num_workers=2, multiprocessing_context=sys.argv[1])\n"
        "    print([int(y[0, 0, 0]) for y in loader])\n"
    )
    for start in ("spawn", "fork"):
        done = run(folder, "main.py", start)
        assert done.stdout == "[0, 4, 8, 12]\n", done.stderr
