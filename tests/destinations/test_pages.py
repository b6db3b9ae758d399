"""The documentation's pages on destinations: their code runs, where the framework is installed, and prints what stands
there.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tensorir.export.shipped import build

DOCS = Path(__file__).parents[2] / "docs"


PAGES = [("to-torch", "torch"), ("to-jax", "jax"), ("to-tvm-ffi", "tvm_ffi"), ("to-onnxruntime", "onnx")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- the end of a block --"


def executed(code, folder):
    """What the blocks of a page print, each separately."""
    joined = "".join(f"{text}\nprint({MARK!r})\n" for text in code)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, '.')\n{joined}"], cwd=folder, capture_output=True,
        text=True, timeout=240, check=False, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split(f"{MARK}\n")[:-1]


def with_outputs(page, printed):
    """The page whose text after each block of Python is what the block printed."""
    left = iter(printed)
    said = ""

    def one(block):
        nonlocal said
        if block[1] == "python":
            said = next(left)
        elif block[1] == "text":
            return f"```text\n{said}```"
        return block[0]

    return BLOCK.sub(one, page)


@pytest.mark.parametrize(("page", "needed"), PAGES)
def test_a_page_prints_what_it_says(page, needed, tmp_path, request):
    """``--update-golden`` writes the outputs into the page."""
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    path = DOCS / f"{page}.md"
    text = path.read_text("utf-8")
    kinds = [kind for kind, _ in BLOCK.findall(text) if kind in ("python", "text")]
    printed = executed([code for kind, code in BLOCK.findall(text) if kind == "python"], tmp_path)
    followed = [kinds[n : n + 2] == ["python", "text"] for n, kind in enumerate(kinds) if kind == "python"]
    assert followed == [bool(said) for said in printed]
    if request.config.getoption("--update-golden"):
        path.write_text(with_outputs(text, printed), encoding="utf-8")
    assert with_outputs(path.read_text("utf-8"), printed) == path.read_text("utf-8")


@pytest.mark.parametrize(("page", "needed"), [("exporting", "pyopencl"), ("to-c", "numpy")])
def test_cells_print_that_exports_are_right(page, needed, tmp_path):
    """The build of the documentation shows what these print, and does not judge it."""
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    printed = executed(CELL.findall((DOCS / f"{page}.md").read_text("utf-8")), tmp_path)
    assert "".join(printed) == RIGHT[page]


RIGHT = {
    "exporting": "selftest ok source pyopencl c: c, 2 cases, exact\nequal to NumPy: True\nselftest ok mm\n",
    "to-c": "mm.c mm.h selftest.c\nselftest ok mm\n0 17 323\n1\nTrue True\n",
}
