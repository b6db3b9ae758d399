"""The package as an object: what an import costs, what must never be in it, what is installed."""

import ast
import importlib.metadata
import importlib.util
import re
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from parsed import nodes

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tensorir"
SOURCES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "numpy", "pyopencl", "cupy", "skopt", "sklearn", "scipy", "matplotlib", "IPython", "rich", "click", "ml_dtypes",
    "torch", "PIL", "distributed",
)  # fmt: skip


def python(code: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(code: str) -> set[str]:
    """Which of HEAVY a fresh interpreter has loaded after ``code``."""
    said = python(f"{code}\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    return set(said.split("\n")[-1].split())


# --- weight


def test_import_loads_nothing_heavy():
    assert not loaded_by("import tensorir")


def test_declaring_and_scheduling_needs_numpy_at_most():
    code = (
        "import tensorir as tir; A = tir.placeholder((8, 8)); C = tir.compute((8, 8), lambda i, j: A[i, j] + 1)\n"
        "s = tir.Schedule(C); s.split('C.i', [None, 4]); s.source(); s.source('cuda')"
    )
    assert loaded_by(code) <= {"numpy"}


def test_import_costs_little_more_than_numpy():
    def seconds(code: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            python(code)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    seconds("import tensorir")  # compiles the .pyc files
    assert seconds("import tensorir") - seconds("import numpy") < 0.15


@pytest.mark.parametrize("args", [("--help",), ("tune", "--help"), ("log", "ls", "--help")], ids=" ".join)
def test_help_loads_neither_numpy_nor_rich(args):
    code = (
        f"import sys; sys.argv = ['tensorir', *{args!r}]\n"
        "from tensorir.cli.main import main\n"
        "try: main()\nexcept SystemExit as e: assert not e.code, e.code"
    )
    assert not loaded_by(code) & {"numpy", "rich", "pyopencl", "cupy", "skopt", "scipy", "ml_dtypes"}


def test_help_loads_the_command_line_and_errors_alone():
    said = python(
        "import sys\nfrom tensorir.cli.main import run\nrun(['--help'])\n"
        "print(*{m.split('.')[1] for m in sys.modules if m.startswith('tensorir.')})"
    )
    assert set(said.split("\n")[-1].split()) == {"_package", "cli", "codec", "errors"}


@pytest.mark.parametrize("first", ["tensor", "compute", "reducers", "whole", "program"])
def test_whichever_module_is_first_operators_and_reprs_work(first):
    """``expr/whole.py`` tells tensors what their operators make, ``ir/text.py`` nodes what their repr says."""
    code = (
        f"import tensorir.expr.{first}\nfrom tensorir.expr.compute import placeholder\n"
        "A = placeholder((4, 8)); print((A[1:] + 1).shape, A.sum(axis=1).op.bodies)"
    )
    assert python(code) == "(3, 8) (<Reduce sum(A[i, k], axis=k)>,)"


def test_every_public_name_is_there():
    import tensorir

    missing = []
    for name in tensorir.__all__:
        try:
            getattr(tensorir, name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    assert not missing


# --- what must never be in it


UNSAFE = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")


def is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def calls(file: Path) -> list[ast.Call]:
    return [n for n in nodes(file) if isinstance(n, ast.Call)]


def test_data_is_never_code():
    found = {str(file.relative_to(PACKAGE)): bad for file in SOURCES if (bad := unsafe(file))}
    assert not found


def unsafe(file: Path) -> list[str]:
    """Where a file runs what may be data."""
    bad = [
        f"line {c.lineno}: {c.func.id}"
        for c in calls(file)
        if isinstance(c.func, ast.Name) and c.func.id in ("eval", "exec", "__import__")
    ]
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        bad += [f"line {node.lineno}: import {n}" for n in names if n.split(".")[0] in UNSAFE]
        if isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle") and not is_false(node.value):
            bad.append(f"line {node.value.lineno}: {node.arg}=")
        shell = isinstance(node, ast.Attribute) and node.attr in ("system", "popen")
        if shell and ast.unparse(node) in ("os.system", "os.popen"):
            bad.append(f"line {node.lineno}: os.{node.attr}")
    return bad


TRACKED = [
    p
    for folder in ("tensorir", "docs", "examples", "benchmarks", ".ci", "tests")
    for p in sorted((ROOT / folder).rglob("*"))
    if p.is_file()
    and p.suffix in (".py", ".md", ".toml", ".h", ".cl", ".cu", ".css", ".txt", ".json", ".ipynb", "")
    and not {"__pycache__", "_build", "tuning_logs", "results", ".ipynb_checkpoints"} & set(p.relative_to(ROOT).parts)
    and p != Path(__file__)
] + [ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml")]

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE = re.compile(r"(?<![\w.<{/])/(?:home|root|work|Users)/\w|\b[A-Z]:\\\\?Users\\")


def test_nothing_unfinished_and_no_machine_paths():
    bad = []
    for path in TRACKED:
        if not path.exists():
            bad.append(f"{path.relative_to(ROOT)} is missing")
            continue
        for n, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if UNFINISHED.search(line) or MACHINE.search(line):
                bad.append(f"{path.relative_to(ROOT)}:{n}: {line.strip()[:100]}")
    assert not bad


# --- what is installed


def test_version_is_said_once():
    import tensorir

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert declared is not None
    assert declared[1] == tensorir.__version__


def test_an_installed_copy_is_whole():
    """Data files travel with the wheel: headers, style sheets, the type marker."""
    try:
        installed = importlib.metadata.distribution("tensorir")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tensorir runs from the checkout, it is not installed")
    there = Path(str(installed.locate_file("tensorir")))
    if not there.is_dir() or there.samefile(PACKAGE):
        pytest.skip("tensorir is installed in place")

    def names(folder: Path) -> set[str]:
        files = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return {str(p.relative_to(folder)) for p in files}

    assert names(PACKAGE) == names(there)


def test_wheels_hold_every_file_of_the_package():
    """What is no Python travels by the patterns of pyproject.toml; a kind of file that they lack would stay behind."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["tensorir"]
    sent = {p for pattern in patterns for p in PACKAGE.glob(pattern)}
    files = {p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts}
    assert files <= sent
    assert PACKAGE / "errors/catalogue/README.md" in files


# --- tests


def test_helpers_of_tests_have_names_of_their_own():
    """pytest imports them by their base name: of two with one name, the second directory gets the first one's."""
    names = [p.name for p in (ROOT / "tests").rglob("*.py") if p.name != "conftest.py"]
    assert sorted({n for n in names if names.count(n) > 1}) == []
