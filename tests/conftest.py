"""Fixtures for all tests."""

import difflib
import functools
import gc
import json
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorir.runtime import host

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
"""Of tests with many cases those that always run: they have the lines of the others (``tools/case_lines.py``)."""
DRAWN = 0.04
"""Of the other cases, in each run."""
os.environ.pop("COLUMNS", None)  # readline leaves it to the processes of xdist, which are no terminals
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")  # NumPy's threads spin for 60 ms in each process that imports it

host.cores = functools.wraps(host.cores)(
    lambda: 2
)  # of plain targets, so that schedules are the same on all machines; devices have what they have


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )
    parser.addoption(
        "--every-case", action="store_true", help="run all cases of tests, not those of cases.json and few"
    )


def pytest_configure(config):
    os.environ.setdefault(
        "TENSORIR_CASES_SEED", str(random.SystemRandom().randrange(1 << 30))
    )  # all processes draw alike


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("--every-case"):
        terminalreporter.write_line(
            f"some cases of large tests, TENSORIR_CASES_SEED={os.environ['TENSORIR_CASES_SEED']}"
        )


def pytest_collection_modifyitems(config, items):
    """Leave out cases that run no line but those that several other tests run, unless tests are asked for by name. A
    test whose cases are others than those that were recorded runs all of them.
    """
    if config.getoption("--every-case") or config.option.keyword or any("::" in a for a in config.args):
        return
    cases, seed = {}, os.environ["TENSORIR_CASES_SEED"]
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if test in CASES:
            cases.setdefault(test, {})[case.removesuffix("]")] = item
    left_out = set()
    for test, some in cases.items():
        if zlib.crc32("\n".join(sorted(some)).encode()) == CASES[test]["all"]:
            left_out |= {item for case, item in some.items() if case not in CASES[test]["kept"]
                         and random.Random(f"{seed} {item.nodeid}").random() >= DRAWN}  # fmt: skip
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection(session):
    """What is collected stays."""
    gc.disable()


def pytest_collection_finish(session):
    """Trees are made of millions of small nodes, hardly any of them in cycles: looking for those every 700 nodes, among
    all collected tests as well, takes a tenth of the time of lowering.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(200_000, 10, 10)


@pytest.fixture(autouse=True, scope="session")
def _own_turns(tmp_path_factory):
    """Test runs side by side do not take turns at timing: whose turn it is, is a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("turns")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _short_races():
    """Finalists of kernels of microseconds race for a moment: which of them wins is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorir.api.measurer.LEAST_RACE_S", 0.1)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_emulator(tmp_path_factory):
    """Of test processes side by side one compiles the emulator, for ten seconds, and the others wait and have it from
    the cache of all tests.
    """
    try:
        import fcntl
    except ImportError:  # not on every system
        yield
        return
    from tensorir.check import emulate
    from tensorir.runtime.cache import default_directory

    made, common = emulate._made, default_directory()
    lock = tmp_path_factory.getbasetemp().parent / "emulator.lock"

    def made_once(*given):
        with lock.open("w") as file, pytest.MonkeyPatch.context() as patch:
            fcntl.flock(file, fcntl.LOCK_EX)
            patch.setenv("TENSORIR_CACHE_DIR", str(common))
            return made(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulate, "_made", made_once)
        yield


@pytest.fixture(autouse=True)
def _limits_stay():
    """A test that bounds its process bounds the tests after it: sanitizers found no memory for their shadows."""
    try:
        import resource
    except ImportError:  # not on every system
        yield
        return
    kinds = [resource.RLIMIT_DATA, resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE]
    before = [resource.getrlimit(kind) for kind in kinds]
    yield
    after = [resource.getrlimit(kind) for kind in kinds]
    for kind, limits in zip(kinds, before, strict=True):
        resource.setrlimit(kind, limits)
    assert after == before


@pytest.fixture
def scheduled_again(monkeypatch):
    """Plans follow no steps that they have taken already: a test plants a fault in them later."""
    monkeypatch.setattr(
        "tensorir.automatic.plan.Plan._begin", lambda self, s, _: self._scheduled(s, self.space().default, None)
    )


@pytest.fixture
def unoptimised(monkeypatch):
    """What is built for an OpenCL device computes the same without its compiler's optimisations, which take two
    thirds of a test's time. ``test_operators``, tuning and the README's tour run with them, as users do.
    """
    monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")


FEWER_SHAPES = frozenset({
    "algorithms", "automatic", "benchmarks", "examples", "export", "expr", "lower", "nn", "ops", "property",
    "schedule", "warps",
})  # fmt: skip
"""Folders whose tests check many schedules by the same rules, templates or primitives."""
EVERY_SHAPE = frozenset({"checks", "fault", "faults", "mutants", "planted", "unseen", "wrong"})
"""Words in the names of tests there that check on every shape: they want faults seen, or are about the shapes."""


@pytest.fixture(autouse=True)
def _some_shapes(request, monkeypatch):
    """``check`` tries the awkward shape that tells most, the one with the longest axis, which is over several tiles and
    stages, and one other that is another for every trace: where hundreds of schedules are checked, each shape is there
    often.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    name = f"{request.path.stem}_{request.node.originalname}"
    if folder not in FEWER_SHAPES or EVERY_SHAPE & {*name.split("_")}:
        return
    from tensorir.check import verdict

    every = verdict.awkward_shapes

    def some(s):
        found, turn = every(s), zlib.crc32(str(s.trace).encode())
        longest = max(found[1:], key=lambda shape: max(shape.values(), default=0), default=None)
        others = [shape for shape in found[1:] if shape is not longest]
        groups = (found[:1], [] if longest is None else [longest], others)
        return [those[(turn >> 8 * n) % len(those)] for n, those in enumerate(groups) if those]

    monkeypatch.setattr(verdict, "awkward_shapes", some)
    monkeypatch.setattr(verdict, "EMULATED_SHAPES", 3)


@pytest.fixture
def golden(request) -> Callable[[str, str], None]:
    """``golden(text, "folder/name.txt")`` compares ``text`` with tests/golden/folder/name.txt.

    ``pytest --update-golden`` writes the files instead; read the diff before committing it.
    """

    def compare(text: str, name: str) -> None:
        path = GOLDEN / name
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"there is no golden file {name}: run pytest --update-golden and read what it wrote")
        want = path.read_text(encoding="utf-8")
        if text != want:
            diff = difflib.unified_diff(want.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=2)
            pytest.fail(f"{name} differs (pytest --update-golden accepts it):\n" + os.linesep.join(diff), pytrace=False)

    return compare
