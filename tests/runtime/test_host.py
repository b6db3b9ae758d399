"""What the runtime finds out about the processor."""

import pytest

import tensorir as tir
from tensorir.runtime import host
from tensorir.runtime.device import open_device


@pytest.mark.parametrize(
    ("machine", "text", "found"),
    [
        ("x86_64", "processor\t: 0\nflags\t\t: fpu avx512f avx512bw avx512dq avx512vl\n", True),
        ("AMD64", "flags : avx512vl avx512dq avx512f avx512bw avx2", True),
        ("x86_64", "flags : fpu avx2 avx512f", False),
        ("x86_64", "", False),
        ("aarch64", "flags : avx512f avx512bw avx512dq avx512vl", False),
    ],
)
def test_avx512_is_what_the_system_says(monkeypatch, tmp_path, machine, text, found):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    assert host.has_avx512.__wrapped__() is found


def test_without_cpuinfo_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "missing")
    assert host.has_avx512.__wrapped__() is False


def test_the_target_of_a_cpu_says_how_wide_it_is():
    target = open_device("opencl:pocl").target
    wide = host.has_avx512()
    assert (target.vector_bytes, target.registers) == ((64, 32) if wide else (32, 16))
    assert tir.Target.parse(target.text) == target
