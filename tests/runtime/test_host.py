"""What the runtime finds out about the processor."""

import ctypes
import inspect
from importlib import import_module, resources
from types import SimpleNamespace

import pytest

import tensorir as tir
from tensorir.codegen.source import AVX512, WIDE_MACRO
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
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(host.platform, "machine", lambda: machine)
    assert host.has_avx512.__wrapped__() is found


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([("32K", "1M")] * 2, (32 << 10, 1 << 20)),
        ([("48K", "2048K"), ("32K", "4M")], ()),  # hybrid cores
        ([("32K", "?")] * 2, ()),
        ([], ()),  # an emulated processor, another system
    ],
)
def test_caches_are_those_of_all_cores_or_unknown(monkeypatch, tmp_path, sizes, found):
    for n, (first, second) in enumerate(sizes):
        own = (("1", "Data", first), ("1", "Instruction", "64K"), ("2", "Unified", second), ("3", "Unified", "32M"))
        for k, fields in enumerate(own):
            folder = tmp_path / f"cpu{n}" / "cache" / f"index{k}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "size"), fields, strict=True):
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(host, "_CORES", tmp_path)
    monkeypatch.setattr(host, "_usable", lambda: {0, 1})
    assert host.caches_here() == found


def test_the_exported_loader_asks_the_same():
    text = resources.files("tensorir.export.shipped").joinpath("loader_pyopencl.py").read_text()
    assert all(f'"{flag}"' in text for flag in AVX512)
    assert f'"-D{WIDE_MACRO}"' in text
    assert all(inspect.getsource(f) in text for f in (host.flags_here, host.name_processor))


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
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "missing")
    assert host.has_avx512.__wrapped__() is False


def test_the_target_of_a_cpu_says_how_wide_it_is():
    target = open_device("opencl:pocl").target
    wide = host.has_avx512()
    assert (target.vector_bytes, target.registers) == ((64, 32) if wide else (32, 16))
    assert tir.Target.parse(target.text) == target


def one():
    a = tir.placeholder((8,), name="a")
    return tir.compute((8,), lambda i: a[i] + 1, name="y")


@pytest.mark.parametrize("wide", [False, True])
def test_plain_names_are_this_processor(monkeypatch, wide):
    monkeypatch.setattr(host, "has_avx512", lambda: wide)
    monkeypatch.setattr(host, "cores", lambda: 6)
    bare = tir.Target.parse("opencl")
    for plain in ("opencl", "opencl -kind=cpu", "c"):
        here = host.target_here(plain)
        assert (here.registers, here.vector_bytes) == ((32, 64) if wide else (16, 32))
        assert here.units == 6 and tir.auto_schedule(one(), plain).target == here, "as traces and records hold it"
    for said in (bare, "opencl -vector_bytes=32", "opencl -kind=gpu", "cuda"):
        assert host.target_here(said) == tir.Target.parse(said), "what is said stays"


@pytest.mark.parametrize("wide", [False, True])
def test_a_configuration_of_this_device_gives_its_kernel_for_plain_opencl(monkeypatch, wide):
    monkeypatch.setattr(host, "has_avx512", lambda: wide)
    monkeypatch.setattr(host, "cores", lambda: 2)
    work = tir.ops.conv2d(c=16, h=14, w=14, k=32, pad=1)
    device = f"opencl {'-registers=32 -vector_bytes=64' if wide else '-registers=16 -vector_bytes=32'} -units=2"
    made = work.schedule(template="cpu_tile_column", target=device)
    config = work.templates["cpu_tile_column"].space_for(made.target).default
    assert work.schedule(config, "cpu_tile_column", "opencl").source() == made.source()
    assert work.templates["cpu_tile_column"].space.default == config
    assert tir.replay(made.outputs, made.trace, target="opencl").source() == made.source(), "the text is the schedule's"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "odd"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "5\n", "cpu/cpu.cfs_period_us": "0\n"}, 8),
    ],
)
def test_cores_are_no_more_than_affinity_and_a_container_give(tmp_path, monkeypatch, files, most):
    monkeypatch.setattr(host, "_CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: range(8), raising=False)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert host.cores.__wrapped__() == most


ZEN, CORE = ("sse4a abm avx2 bmi1 bmi2 f16c fma movbe", "abm avx2 bmi1 bmi2 f16c fma movbe avx512f")


@pytest.mark.parametrize(
    ("platform", "triple", "name", "flags", "then"),
    [
        ("Portable Computing Language", b"x86_64-unknown-linux-gnu", b"generic", ZEN, b"znver3"),
        ("Portable Computing Language", b"x86_64-pc-linux-gnu", b"generic", CORE, b"haswell"),
        ("Portable Computing Language", b"x86_64-pc-linux-gnu", b"generic", "sse4a avx", b"x86-64"),
        ("Portable Computing Language", b"x86_64-pc-linux-gnu", b"znver3", ZEN, b"znver3"),
        ("Portable Computing Language", b"x86_64-pc-linux-gnu", b"generic-rv64", ZEN, b"generic-rv64"),
        ("Portable Computing Language", b"aarch64-linux-gnu", b"generic", ZEN, b"generic"),
        ("Another", b"x86_64-unknown-linux-gnu", b"generic", ZEN, b"generic"),
    ],
)
def test_a_processor_younger_than_the_compiler_is_called_after_its_kin(
    monkeypatch, tmp_path, platform, triple, name, flags, then
):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "cpuinfo")
    strings = [ctypes.create_string_buffer(s, 32) for s in (b"pthread", triple, name)]
    words = (ctypes.c_uint64 * 256)(3, *(ctypes.addressof(s) for s in strings), 2**64 - 1, 5)
    device = SimpleNamespace(platform=SimpleNamespace(name=platform), int_ptr=ctypes.addressof(words))
    host.name_processor(device)
    assert [s.value for s in strings] == [b"pthread", triple, then]
