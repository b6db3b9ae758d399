"""Every exported folder is a package of its own name: several in one process run each its own kernel."""

import importlib.util
import re
import subprocess
import sys

import pytest
import zoo
from test_folder import exported, needs_device, run
from test_shape_sets import ONE, TWO, note

import tensorir as tir
from tensorir.export.folder import export
from tensorir.export.options import package_of

pytestmark = [pytest.mark.usefixtures("unoptimised"), needs_device]

PATHS = """
import sys
def first(place): sys.path.insert(0, place)
"""
PROGRAMS = {
    "packages": "first(root); import one, two, three; P = one.Program, two.Program, three.Program",
    "names of packages": (
        "first(root); from one import Program as p; from two import Program as q; from three import Program as r; "
        "P = p, q, r"
    ),
    "their loaders": "first(root); import one.loader, two.loader, three.loader\n"
    "P = [sys.modules[n + '.loader'].Program for n in ('one', 'two', 'three')]",
    "folders": (
        "P = []\nfor n in ('one', 'two', 'three'):\n first(f'{root}/{n}'); from loader import Program; P += [Program]"
    ),
    "modules": (
        "first(f'{root}/one'); import loader as p; first(f'{root}/two'); import loader as q; first(f'{root}/three')\n"
        "import loader as r; P = p.Program, q.Program, r.Program"
    ),
    "again": (
        "P = []\nfor n in ('two', 'three', 'one', 'two', 'three'):\n"
        " first(f'{root}/{n}'); from loader import Program; P += [Program]\n"
        "assert P[0] is P[3] and P[1] is P[4]; P = P[2:]"
    ),
}
SETS = {way: code.replace("Program", "Programs").replace("loader", "dispatch") for way, code in PROGRAMS.items()}


def python(code, root):
    command = [sys.executable, "-c", f"import sys; root = sys.argv[1]\n{PATHS}{code}", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Folders that multiply by one, two and three."""
    root = tmp_path_factory.mktemp("three")
    x = tir.placeholder((5,), name="x")
    for n, name in enumerate(("one", "two", "three"), 1):
        y = tir.compute((5,), lambda i, n=n: x[i] * n, name="y")
        export(tir.Schedule(y).emitted(), root / name, ["source", "pyopencl"], outputs=(y,))
    return root


@pytest.mark.parametrize("way", PROGRAMS)
def test_three_folders_in_one_process(three, way):
    code = "import numpy as np\nx = np.arange(5, dtype='f4')\nmade = [p() for p in P]\n"
    python(f"{PROGRAMS[way]}\n{code}for n, p in enumerate(made, 1):\n assert (p(x) == n * x).all(), (n, p(x))", three)
    for name in ("one", "two", "three"):
        assert run(three / name).returncode == 0


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Sets whose shapes do not meet."""
    root = tmp_path_factory.mktemp("sets")
    for name, sizes in (("one", (5, 6)), ("two", (7, 8)), ("three", (9, 10))):
        for n in sizes:
            note(root / "log", zoo.product(n), [(ONE, 1e-3), (TWO, 1.01e-3)])
        works = [zoo.product(n) for n in sizes]
        tir.export_shapes(works, root / name, ["source", "pyopencl"], log=str(root / "log"))
    return root


@pytest.mark.parametrize("way", SETS)
def test_three_sets_in_one_process(sets, way):
    code = """
import numpy as np
for programs, sizes in zip([p() for p in P], ((5, 6), (7, 8), (9, 10))):
    for n in sizes:
        a = np.arange(n * n, dtype="f4").reshape(n, n)
        assert (programs(n=n)(a, a) == a @ a).all()
"""
    python(SETS[way] + code, sets)
    choices = "for n, k in (('one', 5), ('two', 7), ('three', 9)):\n first(f'{root}/{n}'); from choose import TUNED\n"
    python(f"{choices} assert (k,) in TUNED", sets)


def test_what_a_package_imports(three, sets):
    """Nothing that it needs not: what runs comes when it is asked for."""
    code = "first(root)\nimport one\nprint({'numpy', 'pyopencl', 'one.loader'} & set(sys.modules), dir(one))"
    out = python(code, three)
    assert out.startswith("set()") and "'Program'" in out and "'Programs'" not in out
    assert "'Programs'" in python("first(root)\nimport one\nprint(dir(one))\nassert not hasattr(one, 'Program')", sets)


def test_two_folders_of_one_name_are_told(three, tmp_path, monkeypatch):
    """Of the second Python imports the first; a language's folder has the name of what it is in before its own."""
    exported(zoo.product(5), tmp_path / "one")
    code = f"first(root); import one; one.Program; first({str(tmp_path)!r}); import one\ntry: one.Program()\n"
    out = python(f"{code}except ImportError as error: print(error)\nfrom one import loader", three)
    assert f"two exported folders are named one: {three / 'one'} was imported, {tmp_path / 'one'} is first" in out
    for name in ("a", "b"):
        exported(zoo.product(5), tmp_path / name / "opencl")
    python("first(root); import a.opencl, b.opencl\nassert a.opencl.Program is not b.opencl.Program", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("anything", tmp_path / "one" / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["anything"] = module
    spec.loader.exec_module(module)
    assert module.Program.__module__ == "anything.loader"
    del sys.modules["anything"], sys.modules["anything.loader"]


@pytest.mark.parametrize(
    ("folder", "package"),
    [("conv", "conv"), ("out/opencl", "out.opencl"), ("a-b/cuda", None), ("my-conv", None), ("v1.2", None),
     ("numpy", None), ("class", None), ("json", None)],
)  # fmt: skip
def test_the_readme_says_what_to_write(tmp_path, folder, package):
    where = exported(zoo.product(5), tmp_path / folder)
    lines = (where / "README.md").read_text().split("## ")[1].splitlines()
    assert package_of(where) == package
    code = "\n".join(line.strip() for line in lines if line.startswith("    "))
    root = where if package is None else where.parents[package.count(".")]
    code = re.sub('"[a-z ]*this[a-z ]*"', "root", code)
    code = f"import numpy as np; A = B = np.arange(25, dtype='f4').reshape(5, 5)\n{code}\nassert (C == A @ B).all()"
    python(code, root)
