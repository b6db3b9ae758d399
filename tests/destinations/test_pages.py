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


PAGES = [("exporting", "pyopencl"), ("to-c", "numpy"), ("to-torch", "torch"), ("to-jax", "jax"),
         ("to-tvm-ffi", "tvm_ffi"), ("to-onnxruntime", "onnx")]  # fmt: skip


@pytest.mark.parametrize(("page", "needed"), PAGES)
def test_a_page_prints_what_it_says(page, needed, tmp_path):
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if build.compiler() is None:
        pytest.skip("there is no C compiler")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    code = "import sys\nsys.path.insert(0, '.')\n" + "".join(text for kind, text in blocks if kind == "python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "".join(text for kind, text in blocks if kind == "text")
