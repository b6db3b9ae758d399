"""What the runtime finds out about the processor."""

from importlib import import_module, resources
from types import SimpleNamespace

import pytest

import tensorir as tir
from tensorir.codegen.dialect import AVX512, WIDE_MACRO
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


def test_the_exported_loader_asks_the_same():
    text = resources.files("tensorir.export.shipped").joinpath("loader_pyopencl.py").read_text()
    assert all(f'"{flag}"' in text for flag in AVX512)
    assert f'"-D{WIDE_MACRO}"' in text


@pytest.mark.parametrize(
    ("kind", "platform", "flags", "given"),
    [
        ("CPU", "Portable Computing Language", AVX512, True),
        ("CPU", "Portable Computing Language", AVX512[1:], False),
        ("CPU", "Another", AVX512, False),
        ("GPU", "Portable Computing Language", AVX512, False),
    ],
)
def test_the_exported_loader_defines_the_macro_where_it_holds(monkeypatch, tmp_path, kind, platform, flags, given):
    loader = import_module("tensorir.export.shipped.loader_pyopencl")
    (tmp_path / "cpuinfo").write_text(f"flags : {' '.join(flags)}\n")
    monkeypatch.setattr(loader, "CPUINFO", tmp_path / "cpuinfo")
    device = SimpleNamespace(type=getattr(loader.cl.device_type, kind), platform=SimpleNamespace(name=platform))
    assert loader.extra_options(device) == ([f"-D{WIDE_MACRO}"] if given else [])


def test_without_cpuinfo_it_is_not_known(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "missing")
    assert host.has_avx512.__wrapped__() is False


def test_the_target_of_a_cpu_says_how_wide_it_is():
    target = open_device("opencl:pocl").target
    wide = host.has_avx512()
    assert (target.vector_bytes, target.registers) == ((64, 32) if wide else (32, 16))
    assert tir.Target.parse(target.text) == target
