"""A packed log on another machine: no compilation on the same device, no use on another, nothing from hostile files."""

import hashlib
import json
import os
import stat
import zipfile

import numpy as np
import pytest
from noted import note, operator

import tensorir as tir
from tensorir.api import load_cache, unproven
from tensorir.cli.parse import work_of
from tensorir.cli.verb_cache import export_pack, import_pack
from tensorir.errors import LaunchError, refuse
from tensorir.runtime import cache, opencl
from tensorir.runtime.device import devices, open_device
from tensorir.tune.log import LogReader, freeze
from tensorir.tune.pack import PackError, opened, write_pack
from tensorir.tune.record import sealed

pytestmark = pytest.mark.skipif(
    not any(d.usable and "Portable" in d.platform for d in devices()), reason="no OpenCL device that gives binaries"
)

A, B = (np.arange(256, dtype=np.float32).reshape(16, 16) % n for n in (5, 7))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch, unoptimised):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setattr(load_cache, "package_state", lambda: None)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """``machine(name)`` goes to another machine: an empty cache, and it counts what is compiled from then on."""
    compiled = []
    real = opencl.OpenCLModule._build
    monkeypatch.setattr(opencl.OpenCLModule, "_build", lambda self: compiled.append(1) or real(self))

    def go(name):
        monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / name))
        compiled.clear()
        return compiled

    return go


@pytest.fixture
def packed(tmp_path):
    """A packed log of one tuned operator."""
    note(operator(), tmp_path / "log", (5e-3, 3e-3))
    export_pack(tmp_path / "a.pack", str(tmp_path / "log"), (), work_of)
    return tmp_path / "a.pack"


@pytest.fixture
def packed_elsewhere(tmp_path, monkeypatch):
    """``packed_elsewhere(key, value)``: the packed log of a machine whose device differs in one respect."""

    def go(key, value):
        with monkeypatch.context() as context:
            context.setitem(open_device("opencl").identity, key, value)
            note(operator(), tmp_path / "log")
            export_pack(tmp_path / "a.pack", str(tmp_path / "log"), (), work_of)
        return tmp_path / "a.pack"

    return go


def state(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_on_the_same_device_nothing_is_compiled(tmp_path, machine):
    note(operator(), tmp_path / "log", (5e-3, 3e-3))
    done = export_pack(tmp_path / "a.pack", str(tmp_path / "log"), (), work_of)
    assert (done["records"], done["artifacts"], done["without"]) == (2, 1, {})
    assert done["bytes"] == (tmp_path / "a.pack").stat().st_size < 1 << 20
    compiled = machine("there")
    done = import_pack(tmp_path / "a.pack", str(tmp_path / "log there"))
    (device,) = done["devices"]
    assert (done["records"], done["artifacts"], done["known"]) == (2, 1, 0)
    assert device["here"] and (device["records"], device["artifacts"]) == (2, 1)
    f = operator().load(log=str(tmp_path / "log there"))
    np.testing.assert_array_equal(f(A, B), A @ B)
    assert not compiled and f.program.cached
    assert list(LogReader(tmp_path / "log there").records()) == list(LogReader(tmp_path / "log").records())
    before = state(tmp_path)
    done = import_pack(tmp_path / "a.pack", str(tmp_path / "log there"))
    assert done["known"] == 1 and state(tmp_path) == before, "again changes nothing"


def test_the_machine_code_is_checked_before_it_is_used(tmp_path, machine, packed, monkeypatch):
    from tensorir.api.bench import Runner
    from tensorir.api.candidate import Refused
    from tensorir.tune.trial import Outcome

    def wrong(*_):
        raise Refused(Outcome("wrong_result"))

    machine("there")
    import_pack(packed, str(tmp_path / "log there"))
    monkeypatch.setattr(Runner, "verify", wrong)
    with pytest.raises(tir.NotTuned):
        operator().load(log=str(tmp_path / "log there"))


def test_the_machine_code_runs_first_in_another_process(tmp_path, machine, packed, monkeypatch):
    """It may crash; a schedule that has the same text meets it as well as a load."""
    asked, real = [], unproven._ask
    monkeypatch.setattr(unproven, "_ask", lambda *a: asked.append(os.getpid()) or real(*a))
    *_, record = LogReader(tmp_path / "log").records()  # the fastest, whose kernel travels
    target = record.device["target"]
    build = operator().schedule(record.config, template=record.template, target=target).build
    assert build() and not asked, "it was compiled here"
    for number, use in enumerate((build, lambda: operator().load(log=str(tmp_path / "log there")))):
        compiled = machine(f"there {number}")
        import_pack(packed, str(tmp_path / "log there"))
        np.testing.assert_array_equal(use()(A, B), A @ B)
        np.testing.assert_array_equal(use()(A, B), A @ B)
        assert len(asked) == number + 1 and not compiled

    def crash(*_):
        raise refuse(LaunchError, "launch.crashed", "it crashed")

    compiled = machine("where it crashes")
    import_pack(packed, str(tmp_path / "log there"))
    monkeypatch.setattr(unproven, "_ask", crash)
    with pytest.raises(tir.LaunchError, match="crashed"):
        build()
    f = operator().load(log=str(tmp_path / "log there"))
    np.testing.assert_array_equal(f(A, B), A @ B)
    assert len(compiled) == 1, "the next record's, compiled here"


def test_for_another_device_it_is_kept_and_not_used(tmp_path, machine, packed_elsewhere):
    pack = packed_elsewhere("driver", "another 1.0")
    machine("there")
    done = import_pack(pack, str(tmp_path / "log there"))
    (device,) = done["devices"]
    assert (device["driver"], device["here"], device["artifacts"]) == ("another 1.0", False, 1)
    with pytest.raises(tir.NotTuned, match="another driver"):
        operator().load(log=str(tmp_path / "log there"))


def test_another_compiler_on_the_same_device(tmp_path, machine, packed_elsewhere):
    pack = packed_elsewhere("compiler", "llvm 99")
    machine("there")
    assert [d["here"] for d in import_pack(pack, str(tmp_path / "log there"))["devices"]] == [False]


def test_frozen_choices_can_be_packed(tmp_path, machine):
    from tensorir.tune.frozen import frozen_text

    other = tir.ops.matmul(m=8, n=8, k=8)
    note(operator(), tmp_path / "log", (5e-3, 3e-3))
    note(other, tmp_path / "log")
    choices, _ = freeze(LogReader(tmp_path / "log"), [operator().title])
    (tmp_path / "frozen.json").write_bytes(frozen_text([c.record for c in choices]))
    done = export_pack(tmp_path / "a.pack", str(tmp_path / "frozen.json"), (), work_of)
    assert (done["records"], done["artifacts"]) == (1, 1)
    done = export_pack(tmp_path / "b.pack", str(tmp_path / "log"), [other.title], work_of)
    assert (done["records"], done["artifacts"]) == (1, 1)
    with pytest.raises(tir.NotTuned, match="no record of nothing"):
        export_pack(tmp_path / "c.pack", str(tmp_path / "log"), ["nothing"], work_of)


def test_workloads_of_users_take_what_load_left(tmp_path):
    note(operator(), tmp_path / "log")
    done = export_pack(tmp_path / "a.pack", str(tmp_path / "log"))
    assert done["artifacts"] == 0 and "call its load()" in done["without"][operator().title]
    operator().load(log=str(tmp_path / "log"))
    assert export_pack(tmp_path / "a.pack", str(tmp_path / "log"))["artifacts"] == 1


def test_rights_are_those_of_the_cache(tmp_path, machine, packed):
    machine("there")
    import_pack(packed, str(tmp_path / "log there"))
    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "there").iterdir()} == {0o600}
    machine("open").clear()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(tir.DeviceError) as caught:
        import_pack(packed, str(tmp_path / "log open"))
    assert caught.value.code == "cache.foreign-directory"
    assert not (tmp_path / "log open").exists() and not list((tmp_path / "open").iterdir())


def test_no_place_for_kernels(tmp_path, machine, packed, monkeypatch):
    monkeypatch.setattr(cache, "_warned", {"said"})
    (tmp_path / "file").write_text("")
    machine("file/x")
    with pytest.raises(PackError) as caught:
        import_pack(packed, str(tmp_path / "log there"))
    assert caught.value.code == "pack.unwritable" and not (tmp_path / "log there").exists()
    machine("there")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.raises(PackError):
        import_pack(packed, str(tmp_path / "log there"))
    assert not (tmp_path / "log there").exists()


def test_cubins_travel_too(tmp_path, machine, monkeypatch):
    """Offline: NVRTC needs no GPU; the record is as one tuned elsewhere."""
    pytest.importorskip("cupy", reason="cupy is not installed")
    from tensorir.runtime import cuda
    from tensorir.tune.log import LogWriter, RunIdentity

    try:
        version = cuda.nvrtc_version()
    except tir.DeviceError as error:
        pytest.skip(error.problems[0].message)
    text = 'extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1.0f; }\n'
    cubin = cuda.compile_cubin(text, "sm_90a")
    identity = RunIdentity("own n=1", "d1g357", {"name": "a GPU", "driver": "13.0"}, {"tensorir": "0.1.0"})
    ok = {"status": "ok", "time_s": 1e-3, "samples": [1e-3], "source_sha256": hashlib.sha256(text.encode()).hexdigest()}
    with LogWriter(tmp_path / "log", identity.workload) as log:
        log.append(identity.record("trial", "t", {}, ok))
    assert export_pack(tmp_path / "a.pack", str(tmp_path / "log"))["artifacts"] == 1
    machine("there")
    devices = import_pack(tmp_path / "a.pack", str(tmp_path / "log there"))["devices"]
    assert [(d["name"], d["here"], d["artifacts"]) for d in devices] == [
        ("a GPU", False, 0),
        ("CUDA sm_90a", any(d["here"] for d in devices), 1),
    ] and devices[1]["driver"] == f"NVRTC {version}"
    monkeypatch.setattr(cuda, "_compile", None)
    again = cuda.compile_cubin(text, "sm_90a")
    assert again.cached and again.data == cubin.data


def rebuilt(packed, change):
    """The pack with members changed by ``change(members)``, its manifest made anew."""
    with opened(packed) as p:
        members = {n: p.read(n) for folder in ("log", "cache") for n in p.names(folder)}
    change(members)
    write_pack(packed, members, {})


def names(members):
    return sorted(members)  # cache/… before log/…


def entry(key, payload=b"code"):
    return f"cache/{hashlib.sha256(key.encode()).hexdigest()}.bin", cache.pack_entry(key, payload)


def without_source(members):
    """A record of a candidate that did not compile: it names no source, and what is no kernel must not be its."""
    name = names(members)[1]
    record = json.loads(members[name].splitlines()[0])
    failed = {"status": "compile_error", "time_s": None, "samples": [], "source_sha256": None, "id": "0" * 16}
    members[name] += sealed({**record, **failed})
    return members


def swap(members, blob):
    members[names(members)[0]] = blob


def add(members, key):
    name, blob = entry(key)
    members[name] = blob


def other_line(members, change):
    name = names(members)[1]
    record = json.loads(members[name].splitlines()[0])
    members[name] += sealed({**record, **change})


HOSTILE = {
    "no entry": lambda m: swap(m, b"machine code"),
    "damaged entry": lambda m: swap(m, m[names(m)[0]][:-1]),
    "another key's entry": lambda m: swap(m, entry("another")[1]),
    "of no record": lambda m: add(m, cache.cache_key(kind="opencl binary", source="__kernel void evil() {}")),
    "of another kind": lambda m: add(m, cache.cache_key(kind="check", source="x")),
    "of another kind, beside a failure": lambda m: add(without_source(m), cache.cache_key(kind="checked", source="x")),
    "no JSON, beside a failure": lambda m: add(without_source(m), "not json at all"),
    "key is no JSON": lambda m: add(m, "__import__('os').system('touch pwned')"),
    "key is a bomb": lambda m: add(m, "[" * 100_000),
    "key is a list": lambda m: add(m, "[]"),
    "line": lambda m: m.update({names(m)[1]: m[names(m)[1]] + b"{}\n"}),
    "forged": lambda m: m.update({names(m)[1]: m[names(m)[1]].replace(b'"time_s":0.005', b'"time_s":1e-9')}),
    "another workload": lambda m: other_line(m, {"workload": "../../x"}),
    "renamed": lambda m: m.update({"log/x-01234567.jsonl": m.pop(names(m)[1])}),
    "newer record": lambda m: other_line(m, {"v": 99}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_a_hostile_file_is_used(tmp_path, machine, packed, name, monkeypatch):
    rebuilt(packed, HOSTILE[name])
    monkeypatch.chdir(tmp_path)
    machine("there")
    with pytest.raises(PackError) as caught:
        import_pack(packed, "log there")
    assert caught.value.code == "pack.damaged", str(caught.value)
    assert not (tmp_path / "log there").exists() and not (tmp_path / "there").exists()
    assert not (tmp_path / "pwned").exists()


def test_a_cut_file_writes_nothing(tmp_path, machine, packed):
    whole = packed.read_bytes()
    before = set(tmp_path.iterdir())
    machine("there")
    for cut in range(0, len(whole), max(1, len(whole) // 60)):
        packed.write_bytes(whole[:cut])
        with pytest.raises(PackError):
            import_pack(packed, str(tmp_path / "log there"))
    assert set(tmp_path.iterdir()) == before


def test_records_name_no_paths(tmp_path, machine, packed):
    """A title is no path, whatever it says; where records go is made of its digest."""
    with opened(packed) as p:
        (name,) = p.names("log")
        record = json.loads(p.read(name).splitlines()[0])
    from tensorir.tune.log import slug

    title = "../../../etc/x m=1"
    evil = sealed({**record, "workload": title})
    write_pack(packed, {f"log/{slug(title)}.jsonl": evil}, {})
    machine("there")
    import_pack(packed, str(tmp_path / "a" / "log"))
    (segment,) = (tmp_path / "a").rglob("*.jsonl")
    assert segment.parent.parent == tmp_path / "a" / "log"


def test_the_file_is_an_ordinary_archive(packed):
    with zipfile.ZipFile(packed) as z:
        manifest = json.loads(z.read("manifest.json"))
        assert {m["name"] for m in manifest["members"]} == set(z.namelist()) - {"manifest.json"}
        for m in manifest["members"]:
            data = z.read(m["name"])
            assert (len(data), hashlib.sha256(data).hexdigest()) == (m["size"], m["sha256"])
    assert os.access(packed, os.R_OK)
