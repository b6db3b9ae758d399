"""C programs that launch OpenCL kernels, called by frameworks; and what these say of what is not there."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from test_c_host import hosted
from test_folder import needs_device

import tensorir as tir
from tensorir.export.shipped import build

pytestmark = [
    needs_device,
    pytest.mark.skipif(build.compiler() is None, reason="no C compiler"),
    pytest.mark.usefixtures("unoptimised"),
]


@pytest.mark.parametrize(("to", "framework"), [("torch", "torch"), ("jax", "jax"), ("onnxruntime", "onnxruntime"),
                                               ("tvm_ffi", "tvm_ffi")])  # fmt: skip
def test_frameworks_call_it_as_they_call_others(tmp_path, to, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    s = tir.ops.matmul(m=33, n=48, k=17, prepack=True).schedule()
    where = hosted(s, tmp_path / "mm", [to], "own::mm")
    done = subprocess.run([sys.executable, str(where / "selftest.py"), to], capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.stdout.startswith(f"selftest ok {to}:"), done.stderr


CALLS = {
    "torch": "import torch, mm; torch.ops.own.mm(torch.ones(2, 8, 12)[0], torch.ones(12, 16))",
    "jax": "import jax, mm; print(jax.jit(mm.call)(np.ones((8, 12), 'f4'), np.ones((12, 16), 'f4')))",
    "onnxruntime": "from mm import door_onnxruntime as d; d.Program()(np.ones((8, 12), 'f4'), np.ones((12, 16), 'f4'))",
    "tvm_ffi": "import mm, tvm_ffi; from mm import build; m = tvm_ffi.load_module(str(build.library())); "
               "m.mm(*(tvm_ffi.from_dlpack(np.ones(s, 'f4')) for s in ((8, 12), (12, 16), (8, 16))))",
}  # fmt: skip
"""A call of an exported kernel by each framework, without its own look at what is missing."""
BATCH = "print(jax.jit(jax.vmap(mm.call, (0, None)))(np.ones((64, 8, 12), 'f4'), np.ones((12, 16), 'f4')))"


def what_it_says(where, code, **more):
    """The last line of a program's error."""
    start = "import sys; sys.modules['tensorir'] = None; import numpy as np; "
    keep = {**os.environ, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(where / "cache"), **more}
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False,
                          timeout=300, cwd=where, env=keep)  # fmt: skip
    assert done.returncode, done.stdout
    return done.stderr


@pytest.mark.parametrize("prepack", [False, True])
@pytest.mark.parametrize("framework", CALLS)
def test_frameworks_say_in_words_what_was_not_there(tmp_path, framework, prepack):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    s = tir.ops.matmul(m=8, n=16, k=12, prepack=prepack).schedule()
    folder = hosted(s, tmp_path / "mm", [framework], "own::mm")
    said = what_it_says(tmp_path, CALLS[framework], TENSORIR_LIBOPENCL="/there/is/none.so")
    assert "mm: /there/is/none.so: there is no such library" in said, said[-2000:]
    if prepack:
        return
    shutil.rmtree(folder)
    hosted(s, folder, [framework], "own::mm", spoil=("__kernel", "__kernel nonsense"))
    said = what_it_says(tmp_path, CALLS[framework])
    assert "mm: the kernels do not compile: " in said and "nonsense" in said, said[-2000:]
    if framework == "jax":
        said = what_it_says(tmp_path, f"import jax, mm; {BATCH}")
        assert "mm: the kernels do not compile: " in said, said[-2000:]


def test_a_driver_of_gpus_that_is_not_there_is_named_as_well(tmp_path):
    pytest.importorskip("tvm_ffi", reason="the extra tvm_ffi is not installed")
    tir.ops.matmul(m=8, n=16, k=12).schedule(target="cuda -arch=sm_80").export(tmp_path / "mm", "tvm_ffi")
    said = what_it_says(tmp_path, CALLS["tvm_ffi"], TENSORIR_LIBCUDA="/there/is/none.so")
    assert "mm: /there/is/none.so: there is no such library" in said, said[-2000:]


FORK_TORCH = """
import os, sys
sys.modules["tensorir"] = None
import torch, mm
op, given = torch.ops.own.mm, (torch.ones(8, 12), torch.ones(12, 16))
assert torch.equal(op(*given), given[0] @ given[1])
if not os.fork():
    for mode in (torch.no_grad, torch.inference_mode):
        try:
            with mode():
                op(*given)
        except RuntimeError as error:
            print(error.args[0].splitlines()[0], flush=True)
    os._exit(0)
os.wait()
"""


def test_an_operator_says_in_words_what_an_error_was(tmp_path):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    for prepack in (False, True):
        work = tir.ops.matmul(m=8, n=16, k=12, prepack=prepack)
        hosted(work.schedule(), tmp_path / f"{prepack}" / "mm", ["torch"], "own::mm")
        done = subprocess.run([sys.executable, "-c", FORK_TORCH], capture_output=True, text=True, check=False,
                              timeout=300, cwd=tmp_path / f"{prepack}")  # fmt: skip
        assert done.stdout.count("forked") == 2, (done.stdout, done.stderr)
