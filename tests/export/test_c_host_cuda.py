"""C programs that launch CUDA kernels: on a driver that is none and records its calls, images chosen by the rule."""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import SHAPE, SOURCE
from test_c_host import Call, module, pointers
from test_c_program import COMPILERS, LIBRARIES, STRICT

import tensorir as tir
from tensorir.codegen.source import DimRange, GatherRange, KernelLaunch, Param, Source, TensorMap
from tensorir.export.folder import export_part
from tensorir.export.images import DeviceImage, Images
from tensorir.export.program import ExportProgram
from tensorir.export.shipped import build
from tensorir.export.shipped.cuda_images import order
from tensorir.runtime import tensor_maps

pytestmark = [
    pytest.mark.skipif(build.compiler() is None, reason="no C compiler"),
    pytest.mark.usefixtures("unoptimised"),
]
HERE = Path(__file__).parent
X, Y = (np.random.default_rng(n).integers(-9, 9, SHAPE).astype("f4") for n in (1, 2))
SCALED = Source(
    "scaled", "cuda", "/* scaled */",
    (Param("A", "float32", SHAPE, "input", 16), Param("I", "int32", (4,), "input", 4),
     Param("scale", "float16", (), "scalar"), Param("C", "float32", SHAPE, "output", 16)),
    (KernelLaunch("scaled", ("A", "C", "I", "scale"), (4, 3, 2), (128, 1, 1), 60000, cluster=4),),
    gathers=(GatherRange("I", 9, "A"),),
)  # fmt: skip


def added(arch="sm_80", source=SOURCE, images=None):
    A, B = tir.placeholder(SHAPE, name="A"), tir.placeholder(SHAPE, name="B")
    C = tir.compute(SHAPE, lambda i, j: A[i, j] + B[i, j], name="C")
    return ExportProgram(source, (C,), arch=arch, kind="gpu", hosted=True, images=images)


def scaled():
    A, rows, scale = (
        tir.placeholder(SHAPE, name="A"),
        tir.placeholder((4,), "int32", name="I"),
        tir.scalar("scale", "float16"),
    )
    C = tir.compute(SHAPE, lambda i, j: A[i, j] * tir.cast(scale, "float32") + tir.cast(rows[0], "float32"), name="C")
    return ExportProgram(SCALED, (C,), arch="sm_90a", kind="gpu", hosted=True, images=images_of(("cubin", "sm_90a")))


def images_of(*made, portable=None):
    rows = (DeviceImage(kind, arch, program, f"{kind} {arch} {program} \0".encode())
            for kind, arch, program in ((*m, "tuned")[:3] for m in made))  # fmt: skip
    return Images(tuple(rows), portable)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A libcuda.so that runs kernels of this test in memory of the host."""
    where = tmp_path_factory.mktemp("driver") / "libcuda.so"
    text = (HERE / "fake_libcuda.c").read_bytes()
    where.write_bytes(build.compiled(build.compiler(), {"fake.c": text}, ["-Wall", "-Wextra", "-Werror"]))
    return where


class Driven:
    """A function on that driver, and what it did there."""

    def __init__(self, part, where, driver, monkeypatch, to=("c",)):
        self.monkeypatch, self.log = monkeypatch, where.parent / "calls"
        self.env(TENSORIR_LIBCUDA=driver, FAKE_LOG=self.log, XDG_CACHE_HOME=where.parent)
        self.where = export_part(part, where, list(to), name=f"t::{where.name}")
        manifest = json.loads((self.where / "manifest.json").read_text())
        self.errors = manifest["errors"]
        self.library = module(self.where, "loader").library(manifest)
        self.function, self.load, why = (self.library[f"{where.name}{end}"] for end in ("", "_load", "_why"))
        why.restype = ctypes.c_char_p
        self.why = lambda: why().decode()
        self.cuda = ctypes.CDLL(str(driver))
        self.cuda.fake_set_current.argtypes = (ctypes.c_void_p,)
        self.cuda.fake_set_current(None)
        self.begin = self.cuda.fake_held()

    def env(self, **given):
        for name, value in given.items():
            self.monkeypatch.setenv(name, str(value))

    def calls(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines

    def device(self, array):
        """Memory of the device with these bytes."""
        address = ctypes.c_uint64()
        self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        ctypes.memmove(address.value, array.ctypes.data, array.nbytes)
        return address.value

    def __call__(self, *arrays, stream=0):
        call = Call(ctypes.sizeof(Call), stream)
        places = [a if isinstance(a, int) else a.ctypes.data for a in arrays]
        return self.function(ctypes.byref(call), pointers(*places))


@pytest.fixture
def driven(tmp_path, driver, monkeypatch):
    for name in [n for n in os.environ if n.startswith("FAKE_")]:
        monkeypatch.delenv(name)
    return lambda part, name="out": Driven(part, tmp_path / name, driver, monkeypatch)


def kept(lines):
    return [x for x in lines if x.startswith(("launch", "copy", "synchronise", "allocate", "free"))]


def test_arrays_of_the_host_are_copied_and_waited_for(driven):
    f = driven(added(images=images_of(("cubin", "sm_80"))))
    out = np.empty(SHAPE, "f4")
    assert f(X, Y, out) == 0, f.why()
    np.testing.assert_array_equal(out, X + Y)
    lines = f.calls()
    assert kept(lines) == [
        f"allocate {4 * 2048} on (nil)", "copy 2048 in on (nil)", "copy 2048 in on (nil)",
        "launch pack 1,1,1 of 32,1,1 with 0 on (nil)", "launch add 1,1,1 of 32,1,1 with 65536 on (nil)",
        "copy 2048 out on (nil)", "synchronise (nil)", "free on (nil)",
    ]  # fmt: skip
    assert "attribute 8 of add is 65536" in lines and lines.count("push 0x1000") == lines.count("pop 0x1000") == 1
    assert "loaded cubin sm_80 tuned " in lines
    assert f(X[::-1].copy(), Y, out) == 0 and (out == X[::-1] + Y).all()
    assert not [x for x in f.calls() if x.startswith(("loaded", "attribute", "cuInit", "primary"))], "made once"
    assert f.cuda.fake_held() == f.begin


def test_arrays_of_the_device_are_enqueued_on_the_stream_and_not_waited_for(driven):
    f = driven(added(images=images_of(("ptx", "compute_80"))))
    f.cuda.fake_set_current(0x2000)
    a, b, c = f.device(X), f.device(Y), f.device(X)
    assert f.load(ctypes.byref(Call(ctypes.sizeof(Call), 0x5000))) == 0
    assert "loaded ptx compute_80 tuned " in f.calls()
    assert f(a, b, c, stream=0x5000) == 0, f.why()
    np.testing.assert_array_equal(np.ctypeslib.as_array((ctypes.c_float * X.size).from_address(c)), (X + Y).ravel())
    lines = f.calls()
    assert kept(lines) == [
        "allocate 2048 on 0x5000", "launch pack 1,1,1 of 32,1,1 with 0 on 0x5000",
        "launch add 1,1,1 of 32,1,1 with 65536 on 0x5000", "free on 0x5000",
    ]  # fmt: skip
    assert not [x for x in lines if x.startswith(("push", "pop"))], "its context is the current one"
    f.cuda.fake_set_current(0x3000)
    assert f(a, b, c, stream=0x5000) == 0 and "push 0x2000" in f.calls(), (
        "the stream's context, where another is current"
    )
    f.cuda.fake_set_current(0x3000)
    assert f(a, b, c) == 0 and "loaded ptx compute_80 tuned " in f.calls(), "each context has a module of its own"
    assert f(a + 4, b, c) == f.errors["ALIGNMENT"] and "device" in f.why()


def test_drivers_without_memory_in_stream_order(driven):
    f = driven(added(images=images_of(("cubin", "sm_80"))))
    f.env(FAKE_POOLS=0)
    f.cuda.fake_set_current(0x2000)
    a, b, c = f.device(X), f.device(Y), f.device(X)
    f.calls()
    assert f(a, b, c) == 0
    assert kept(f.calls())[-2:] == ["synchronise (nil)", "free"], "nobody uses the workspace any more"


def test_numbers_clusters_and_block_memory(driven):
    f = driven(scaled())
    f.env(FAKE_CC=90)
    rows, scale, out = np.array([3, 1, 1, 1], "i4"), np.array([2.5], "f4"), np.empty(SHAPE, "f4")
    assert f(X, rows, scale, out) == 0, f.why()
    np.testing.assert_array_equal(out, np.float32(2.5) * X + 3)
    assert "launch scaled 4,3,2 of 128,1,1 with 60000 on (nil): 1 attribute, 4 is 4,1,1" in f.calls()
    rows[3] = 9
    assert f(X, rows, scale, out) == f.errors["INDEX"]
    assert f(X, f.device(rows), scale, out) == 0, "indices on the device are not looked at"
    f.calls()
    g = driven(scaled(), "compiled_in")
    g.env(FAKE_CLUSTER=4, FAKE_STATIC=60000)
    rows[3] = 0
    assert g(X, rows, scale, out) == 0
    lines = g.calls()
    assert "launch scaled 4,3,2 of 128,1,1 with 0 on (nil)" in lines and not [x for x in lines if "attribute 8" in x]


def test_tensor_maps_are_told_as_python_tells_them(driven, driver, monkeypatch):
    """The same arguments to the driver; the mending of small ones, too."""
    image = TensorMap("A_map", "A", "float32", (2, 8, 8, 4), (16, 4), 0, (), (-1, -1), (1, 2))
    stepped = TensorMap("W_map", "W", "float32", (4, 8, 16), (2, 8, 16), 64, (2, 1, 1))
    kernels = (SOURCE.kernels[0], replace(SOURCE.kernels[1], maps=(image, stepped)))
    f = driven(added(source=replace(SOURCE, kernels=kernels), images=images_of(("cubin", "sm_80"))))
    out = np.empty(SHAPE, "f4")
    assert f(X, Y, out) == 0, f.why()
    np.testing.assert_array_equal(out, X + Y)
    told = [x for x in f.calls() if x.startswith(("tiles", "pixels"))]
    monkeypatch.setattr(tensor_maps, "_driver", lambda: (ctypes.CDLL(str(driver)), 13000))
    for k in kernels:
        for m in k.maps:
            tensor_maps.encoded(4096, **{key: getattr(m, key) for key in m.__dataclass_fields__})
    assert f.calls() == told and len(told) == 4 and any(x.startswith("pixels") for x in told)
    f.env(FAKE_FAIL="cuTensorMapEncodeTiled")
    assert f(X, Y, out) == f.errors["LAUNCH"] and "refuses it (999)" in f.why() and f.cuda.fake_held() == f.begin


IMAGES = (("cubin", "sm_80", "portable"), ("cubin", "sm_90a"), ("ptx", "compute_80", "portable"),
          ("ptx", "compute_90", "portable"))  # fmt: skip


def test_images_are_taken_as_the_rule_says(driven, monkeypatch):
    """What the loaders' rule says of each device, and what comes next where the driver refuses."""
    other = replace(SOURCE, text="/* portable */")
    part = added("sm_90a", images=images_of(*IMAGES, portable=added("sm_80", other)))
    rows = [{"kind": k, "arch": a, "program": (*p, "tuned")[0]} for k, a, *p in IMAGES]
    texts = {"tuned": "sm_90a", "portable": "sm_80"}
    monkeypatch.setenv("TENSORIR_LIBNVRTC", "/none.so")
    f = driven(part)
    out = np.empty(SHAPE, "f4")
    for n, (device, refused) in enumerate(
        [(75, ""), (80, ""), (86, ""), (90, ""), (90, "cubin"), (100, ""), (120, ""), (80, "cubin"), (80, "cubin ptx")]
    ):
        f.env(FAKE_CC=device, FAKE_REFUSE=refused)
        f.cuda.fake_set_current(0x100 + n)  # a context of its own
        try:
            wanted = [i for _, i in order(rows, texts, (device // 10, device % 10)) if i and i["kind"] not in refused]
        except RuntimeError:
            wanted = None
        f.calls()
        code = f(X, Y, out)
        loaded = [x for x in f.calls() if x.startswith("loaded")]
        if wanted is None:
            assert code == f.errors["DEVICE"] and "it has sm_ (75)" in f.why()
        elif not wanted:
            assert code == f.errors["BUILD"] and "no image for this device, and NVRTC" in f.why()
        else:
            assert code == 0 and loaded == ["loaded {kind} {arch} {program} ".format(**wanted[0])], (device, f.why())


def drawn(seed):
    """A few images of a program tuned for one architecture and of another beside it, in any order."""
    random = np.random.default_rng(seed)
    tuned, other = str(random.choice(["sm_80", "sm_90", "sm_90a"])), str(random.choice(["sm_75", "sm_80", "sm_86"]))
    made = [(kind, f"{'sm' if kind == 'cubin' else 'compute'}_{arch}", program)
            for kind in ("cubin", "ptx") for arch in ("80", "86", "90", "90a", "100")
            for program in ("tuned", "portable")]  # fmt: skip
    if seed == 0:  # what is for one architecture alone comes last, and is taken
        return "sm_90a", "sm_80", [("cubin", "sm_90", "tuned"), ("cubin", "sm_90a", "tuned")]
    return tuned, other, [made[n] for n in random.permutation(len(made))[: int(random.integers(2, 18))]]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """A libnvrtc.so whose machine code says what was asked for."""
    where = tmp_path_factory.mktemp("compiler") / "libnvrtc.so"
    where.write_bytes(build.compiled(build.compiler(), {"fake.c": (HERE / "fake_libnvrtc.c").read_bytes()}, ["-Wall"]))
    return where


@pytest.mark.parametrize("seed", range(6))
def test_c_programs_take_what_the_rule_takes(driven, compiler, monkeypatch, seed):
    """Each device, and what comes next where the driver refuses; with the launches of the program that was taken."""
    tuned, other, made = drawn(seed)
    monkeypatch.setenv("TENSORIR_LIBNVRTC", str(compiler))
    kernels = tuple(replace(k, block=(64, 1, 1)) for k in SOURCE.kernels)
    portable = added(other, replace(SOURCE, text="portable", kernels=kernels))
    part = added(tuned, replace(SOURCE, text="tuned"), images_of(*made, portable=portable))
    rows = [{"kind": k, "arch": a, "program": p} for k, a, p in made]
    f, out, number = driven(part), np.empty(SHAPE, "f4"), 0
    for device in (75, 80, 86, 90, 100, 120):
        for refused in ("", "cubin", "ptx", "cubin ptx"):
            number += 1
            f.env(FAKE_CC=device, FAKE_REFUSE=refused)
            f.cuda.fake_set_current(0x100 + number)  # a context of its own
            f.calls()
            code, lines = f(X, Y, out), f.calls()
            try:
                found = order(rows, {"tuned": tuned, "portable": other}, (device // 10, device % 10))
            except RuntimeError:
                assert code == f.errors["DEVICE"]
                continue
            found = [(p, i) for p, i in found if i is None or i["kind"] not in refused]
            loaded = [x for x in lines if x.startswith("loaded")]
            if not found:
                assert code == f.errors["BUILD"] and not loaded
                continue
            program, image = found[0]
            arch = tuned if program == "tuned" else other
            text = f"text sm_{device}{arch[5:] if arch[-1] == 'a' else ''} {program}"
            wanted = "{kind} {arch} {program} ".format(**image) if image else text
            assert code == 0 and loaded == [f"loaded {wanted}"], (device, refused, f.why())
            blocks = {"64" if program == "portable" else "32"}
            assert {x.split(" of ")[1].split(",")[0] for x in lines if x.startswith("launch")} == blocks
            assert (out == X + Y).all()


@pytest.mark.parametrize(
    ("failing", "code"),
    [("cuInit", "DEVICE"), ("cuModuleLoadData", "BUILD"), ("cuModuleGetFunction", "BUILD"),
     ("cuMemAllocAsync", "MEMORY"), ("cuMemcpyHtoDAsync_v2", "LAUNCH"), ("cuLaunchKernel", "LAUNCH"),
     ("cuStreamSynchronize", "LAUNCH")],
)  # fmt: skip
def test_what_fails_is_said_and_leaves_nothing(driven, failing, code, monkeypatch):
    monkeypatch.setenv("TENSORIR_LIBNVRTC", "/none.so")
    f = driven(added(images=images_of(("cubin", "sm_80"))))
    f.env(FAKE_FAIL=failing)
    out = np.empty(SHAPE, "f4")
    assert f(X, Y, out) == f.errors[code] and f.why() and f.cuda.fake_held() == f.begin
    f.env(FAKE_FAIL="")
    assert f(X, Y, out) == 0 and (out == X + Y).all()


def test_without_a_driver_the_folder_says_so(tmp_path):
    where = export_part(added(), tmp_path / "out", ["c"])
    done = subprocess.run([sys.executable, "-I", str(where / "selftest.py")], capture_output=True, text=True,
                          check=False, timeout=120, env={**os.environ, "TENSORIR_LIBCUDA": "/none.so"})  # fmt: skip
    assert done.returncode == 1 and "nothing was tested: c: /none.so: there is no such library" in done.stderr
    assert "Not yet run on a GPU" in (where / "README.md").read_text()
    assert "Not yet run\n   on a GPU" in (where / "out.h").read_text()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_its_own_test_runs_on_the_driver_without_a_warning(tmp_path, driver, compiler):
    images = images_of(("cubin", "sm_80"), ("ptx", "compute_80"))
    where = export_part(added(images=images), tmp_path / "out", ["c"])
    command = [compiler, *STRICT, "selftest.c", "out.c", "-o", "selftest", *LIBRARIES]
    built = subprocess.run(command, cwd=where, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[:3000]
    done = subprocess.run(["./selftest"], cwd=where, check=False, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "TENSORIR_LIBCUDA": str(driver)})  # fmt: skip
    assert done.stdout.strip() == "selftest ok out", done.stderr


# --- with NVRTC


def nvrtc():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    spec = importlib.util.find_spec("nvidia")
    wheels = (
        [p for place in spec.submodule_search_locations or () for p in Path(place).glob("*/lib/libnvrtc.so.1?")]
        if spec
        else []
    )
    if not wheels:
        pytest.skip("NVRTC is not in a wheel")
    return wheels[0]


def test_a_text_is_compiled_where_there_is_no_image(driven, monkeypatch):
    library = nvrtc()
    monkeypatch.setenv("TENSORIR_LIBNVRTC", str(library))
    f = driven(added())
    out = np.empty(SHAPE, "f4")
    assert f(X, Y, out) == 0, f.why()
    assert (out == X + Y).all() and "loaded \x7fELF" in f.calls()
    g = driven(added(source=replace(SOURCE, text="wrong;")), "wrong")
    assert g(X, Y, out) == g.errors["BUILD"] and "kernels.cu(1): error" in g.why()


def test_a_tuned_kernel_carries_its_images(tmp_path, driver, monkeypatch):
    nvrtc()
    s = tir.ops.matmul(m=128, n=128, k=64, dtype="float16").schedule(target="cuda -arch=sm_90a")
    where = s.export(tmp_path / "mm", to=["c", "source"], arch=["sm_80", "sm_90a"])
    manifest = json.loads((where / "manifest.json").read_text())
    assert manifest["language"] == "cuda" and manifest["bodies"]["c"]["host"] == "cuda"
    text = (where / "mm.c").read_text()
    for image in manifest["cuda"]["images"]:
        assert f"/* {image['kind']} for {image['arch']}, the {image['program']} program */" in text
    assert "TIR_PROGRAMS = 2" in text


def test_grids_and_copies_are_those_of_the_extents_of_a_call(driven):
    """The driver that is none computes 16 rows, however many there are."""
    sized = Source(
        "scaled", "cuda", "/* scaled */",
        (Param("n", "int32", (), "dim", 4), Param("A", "float32", ("n", 32), "input", 16),
         Param("I", "int32", (4,), "input", 4), Param("scale", "float16", (), "scalar"),
         Param("C", "float32", ("n", 32), "output", 16), Param("W", "float32", ("n + 1",), "workspace", 16)),
        (KernelLaunch("scaled", ("A", "C", "I", "scale", "n"), ("(n + 3) // 4", 1, 2), (128, 1, 1)),
         KernelLaunch("add", ("A",), ("n // 64", 1, 1), (32, 1, 1))),
        gathers=(GatherRange("I", "n", "A"),), dims=(DimRange("n", 16, 40),),
    )  # fmt: skip
    n = tir.dim("n", low=16, high=40)
    A, rows = tir.placeholder((n, 32), name="A"), tir.placeholder((4,), "int32", name="I")
    scale = tir.scalar("scale", "float16")
    C = tir.compute((n, 32), lambda i, j: A[i, j] * tir.cast(scale, "float32") + tir.cast(rows[0], "float32"), name="C")
    part = ExportProgram(sized, (C,), arch="sm_80", kind="gpu", hosted=True, images=images_of(("cubin", "sm_80")))
    f = driven(part)
    for count in (16, 21, 40):
        a, out = np.arange(count * 32, dtype="f4").reshape(count, 32), np.zeros((count, 32), "f4")
        given = [a, np.array([2, 0, 0, count - 1], "i4"), np.array([3.0], "f4"), out, np.array([count], "i8")]
        assert f(*given) == 0, f.why()
        np.testing.assert_array_equal(out[:16], 3 * a[:16] + 2)
        lines = kept(f.calls())
        nbytes, space = 128 * count, -(-4 * (count + 1) // 256) * 256
        total = 2 * -(-nbytes // 256) * 256 + 256 + space
        assert f"allocate {total} on (nil)" in lines and f"copy {nbytes} in on (nil)" in lines
        assert f"launch scaled {-(-count // 4)},1,2 of 128,1,1 with 0 on (nil)" in lines
        assert not any("launch add" in line for line in lines), "a grid without blocks"
    given[1] = np.array([2, 0, 0, 40], "i4")
    assert f(*given) == f.errors["INDEX"]
    given[4] = np.array([41])
    assert f(*given) == f.errors["DIM_RANGE"] and f.why() == "n is 16 to 40, got 41"
    assert not kept(f.calls())
