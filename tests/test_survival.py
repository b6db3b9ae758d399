"""What a user's process survives, from outside: scripts and commands as users write them, each in a process of its own.

Text that stores through a null pointer, never ends or takes 20 GB is given to every door that runs text; three exported
folders are loaded next to each other; launches wait for what is pending on other queues.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tensorir.runtime.device import devices

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)

COMMON = os.environ.get("TENSORIR_CACHE_DIR")
TEXTS = {
    "null": ("*(volatile GLOBAL float *)0 = 1.0f;", "launch.crashed", "memory.out-of-bounds"),
    "loop": ("for (volatile int z = 0; z == 0;);", "launch.time-limit", "emulate.time"),
    "20 GB": ("volatile float big[5000000000ul]; big[I * 9999999] = 1.0f;", "launch.crashed", "emulate.own-memory"),
}
"""Each with its codes, on the device and from the emulator."""

EDITED = """
import sys
import numpy as np
import tensorir as tir

line, door, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
cuda = door == "emulate"
A = tir.placeholder((64,), name="A")
s = tir.Schedule(tir.compute((64,), lambda i: A[i] * 2, name="B"), *(["cuda"] if cuda else []))
outer, inner = s["B"].split("i", [None, 32])
s.bind(outer, "block.x")
s.bind(inner, "thread.x")
line = line.replace("GLOBAL", "" if cuda else "__global").replace("I", "threadIdx.x" if cuda else "get_global_id(0)")
store = next(text for text in s.source().splitlines() if "B[" in text and "=" in text)
bad = s.with_source(s.source().replace(store, f"{line}\\n{store}"))
X = np.ones(64, np.float32)
try:
    if door in ("device", "emulate"):
        verdict = bad.check(level=door, limit_s=limit)
        assert not verdict
        codes = [p.code for p in verdict.problems]
    else:
        f = bad.build(limit_s=limit)
        {"call": lambda: f(X), "bind": lambda: f.bind(X).wait(), "time": lambda: f.time(X)}[door]()
        raise SystemExit("it ran here")
except tir.TensorIRError as error:
    codes = [p.code for p in error.problems]
    assert len(str(error).splitlines()) <= 12
if not cuda:
    assert np.array_equal(s.build()(X), 2 * X), "and this process can go on"
print("alive", *codes)
"""

MINE = """
import tensorir as tir
from tensorir.intrin.intrin import Intrin, meaning, register

a = tir.placeholder((4,), name="a")
c = tir.compute((4,), lambda n: a[n] * 2, name="c")
for name, line in LINES.items():
    text = line.replace("GLOBAL", "__global").replace("I", "get_global_id(0)")
    store = "for (int n = 0; n < 4; n++) ({c})[n] = ({a})[n] * 2.0f;"
    register(Intrin(f"survival.{name.replace(' ', '-')}", meaning(c), {"opencl": f"{{{{ {text} {store} }}}}"}, "none"))


def template(s, config):
    s.split("B.i", [None, 4])
    if config["text"] != "good":
        s.tensorize("B.i.1", f"survival.{config['text'].replace(' ', '-')}")


def op():
    A = tir.placeholder((64,), name="A")
    B = tir.compute((64,), lambda i: A[i] * 2, name="B")
    space = tir.Space(text=["good", *LINES])
    return tir.Workload("survival", B, templates={"mine": (template, space)})
"""


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    """Nothing has passed in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
        yield


def python(tmp_path, code, *args):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("text", "door"),
    [
        *((text, door) for text in TEXTS for door in ("device", "emulate")),
        ("null", "call"),
        ("loop", "bind"),
        ("20 GB", "time"),
    ],
)
def test_edited_text(tmp_path, monkeypatch, text, door):
    line, there, emulated = TEXTS[text]
    if door == "emulate":  # which no text passes, and which takes seconds to compile
        monkeypatch.delenv("TENSORIR_CACHE_DIR")
        if COMMON:
            monkeypatch.setenv("TENSORIR_CACHE_DIR", COMMON)
    said = python(tmp_path, EDITED, line, door, 1).split()
    assert said[0] == "alive" and (emulated if door == "emulate" else there) in said


def test_a_tuning_with_such_text(tmp_path):
    lines = {name: line for name, (line, *_) in TEXTS.items()}
    (tmp_path / "mine.py").write_text(MINE.replace("import tensorir", f"LINES = {lines!r}\nimport tensorir", 1))
    command = [sys.executable, "-m", "tensorir", "tune", "mine.py:op", "--trials", "4", "--timeout", "2s", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["config"] == {"text": "good"} and found["trials"] == 4
    assert found["counts"] == {"ok": 1, "crashed": 2, "run_timeout": 1}


def test_three_exported_folders(tmp_path):
    made = """
        import numpy as np, tensorir as tir
        x = tir.placeholder((5,), name="x")
        for n, name in enumerate(("one", "two", "three"), 1):
            f = tir.Schedule(tir.compute((5,), lambda i, n=n: x[i] * n, name="y")).build()
            f.export(name, to=["pyopencl"])
    """
    python(tmp_path, made)
    loaded = """
        import sys; sys.path.insert(0, ".")
        import numpy as np, one, two, three
        x = np.arange(5, dtype=np.float32)
        programs = [m.Program() for m in (one, two, three)]
        for n, p in enumerate(programs, 1):
            assert np.array_equal(p(x), n * x), n
        sys.path.insert(0, "./two")
        from loader import Program
        assert np.array_equal(Program()(x), 2 * x)
    """
    python(tmp_path, loaded)


def test_a_thousand_launches_behind_other_queues(tmp_path):
    code = """
        import numpy as np, pyopencl as cl, pyopencl.array as ca, tensorir as tir
        A = tir.placeholder((4096,), name="A")
        f = tir.Schedule(tir.compute((4096,), lambda i: A[i] * 2, name="B")).build(device="opencl")
        context = cl.Context([next(d for p in cl.get_platforms() if "Oclgrind" not in p.name for d in p.get_devices())])
        queue = cl.CommandQueue(context)
        x, y, z = (ca.zeros(queue, 4096, np.float32) for _ in range(3))
        run = f.bind(x, out=y)
        net = tir.sequence([run, f.bind(y, out=z)])
        held, wrong = [], 0
        for n in range(1000):
            if n % 4 == 0:  # nothing runs there until the user says so
                held.append(cl.UserEvent(context))
                cl.enqueue_barrier(queue, wait_for=[held[-1]])
            x.fill(float(n))
            launch, factor = (net, 4) if n % 2 else (run, 2)
            launch()
            if n % 10 == 9:
                while held:
                    held.pop().set_status(cl.command_execution_status.COMPLETE)
                wrong += not np.all(launch.wait().get() == factor * n)
        print(wrong)
    """
    assert python(tmp_path, code).split()[-1] == "0"
