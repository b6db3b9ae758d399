"""C programs on another processor than those that make them: built for aarch64, run by an emulator of it."""

import shutil
import subprocess

import pytest
from test_c_program import KERNELS, LIBRARIES, STRICT

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"no compiler for aarch64 with an emulator (apt-get install {PACKAGES})",
)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_a_static_program_tests_itself(tmp_path, kernel):
    name = kernel.__name__
    folder = kernel().export(tmp_path / name, to=["c"])
    build = [COMPILER, *STRICT, "-O1", "-static", "selftest.c", f"{name}.c", "-o", "selftest", *LIBRARIES]
    built = subprocess.run(build, cwd=folder, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0 and not built.stderr, built.stderr[:3000]
    ran = subprocess.run([EMULATOR, "./selftest"], cwd=folder, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout == f"selftest ok {name}\n", ran.stderr
