"""Tensor maps: what the driver is asked, what is refused before, and when a launch makes them."""

import contextlib
import ctypes
import importlib
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fake_cuda
import numpy as np
import pytest
from fake_cuda import SHAPE, SOURCE, Driver

from tensorir.codegen.source import TensorMap
from tensorir.errors import CompileError, DeviceError, LaunchError
from tensorir.runtime import cuda, cuda_device, tensor_maps
from tensorir.runtime.device import DeviceInfo
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.limits import check_source
from tensorir.runtime.pointers import OnPointers
from tensorir.runtime.sequence import sequence
from tensorir.target import Target

A, B = (np.random.default_rng(n).integers(-9, 9, SHAPE).astype(np.float32) for n in (1, 2))
PLANE = {"name": "x_map", "array": "x", "dtype": "bfloat16", "shape": (300, 512), "box": (128, 64), "swizzle": 128}


@pytest.fixture
def driver(monkeypatch):
    tensor_maps._driver.cache_clear()
    yield Driver().install(monkeypatch)
    tensor_maps._driver.cache_clear()


@pytest.fixture
def device(driver, monkeypatch):
    pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        cuda.nvrtc_version()
    except DeviceError as error:
        pytest.skip(error.problems[0].message)
    made = fake_cuda.cupy()
    monkeypatch.setattr(cuda_device, "load_cupy", lambda: made)
    backend = importlib.import_module("cupy_backends.cuda.api.driver")
    attributes = []
    monkeypatch.setattr(backend, "funcSetAttribute", lambda *args: attributes.append(args))
    info = DeviceInfo("cuda:0", "cuda", "gpu", label="fake", details={"sharedMemPerBlockOptin": 232448})
    opened = cuda_device.CudaDevice(info)
    opened.attributes = attributes
    return opened


# --- encoding


def test_a_matrix(driver):
    made = tensor_maps.encoded(0x7F0000000010, **PLANE)
    assert driver.asked == [
        {
            "kind": 9, "rank": 2, "address": 0x7F0000000010, "extents": [512, 300], "strides": [1024], "box": [64, 128],
            "steps": [1, 1], "interleave": 0, "swizzle": 3, "promotion": 3, "fill": 0,
        }
    ]  # fmt: skip
    assert (made.shape, made.nbytes, made.ctypes.data % 64) == ((1,), 128, 0)
    assert made.view(np.uint64)[0] == 0x7F0000000010


@pytest.mark.parametrize(
    ("dtype", "shape", "box", "swizzle", "want"),
    [
        ("float32", (7, 50, 36), (1, 8, 8), 32, (7, [36, 50, 7], [144, 7200], [8, 8, 1], 1)),
        ("int8", (4, 100, 64), (2, 256, 64), 64, (0, [64, 100, 4], [64, 6400], [64, 256, 2], 2)),
        ("float16", (999,), (256,), 0, (6, [999], [], [256], 0)),
        ("int32", (2, 3, 4, 5, 4), (1, 1, 2, 5, 4), 0, (3, [4, 5, 4, 3, 2], [16, 80, 320, 960], [4, 5, 2, 1, 1], 0)),
    ],
)
def test_dimensions_dtypes_and_swizzles(driver, dtype, shape, box, swizzle, want):
    tensor_maps.encoded(4096, name="m", array="x", dtype=dtype, shape=shape, box=box, swizzle=swizzle)
    asked = driver.asked[0]
    assert tuple(asked[k] for k in ("kind", "extents", "strides", "box", "swizzle")) == want
    assert asked["rank"] == len(shape) and asked["steps"] == [1] * len(shape)


def test_steps(driver):
    tensor_maps.encoded(4096, **{**PLANE, "shape": (3, 30, 64), "box": (1, 24, 64), "steps": (1, 3, 1)})
    assert (driver.asked[0]["box"], driver.asked[0]["steps"]) == ([64, 24, 1], [1, 3, 1])


IMAGE = {
    **PLANE,
    "shape": (8, 14, 20, 256),
    "box": (128, 64),
    "steps": (1, 1, 2, 1),
    "lower": (-1, -2),
    "upper": (0, -3),
}


def test_pixels_of_an_image(driver):
    """The driver counts from the innermost dimension, corners as well: columns, then rows."""
    made = tensor_maps.encoded(0x7F0000000010, **IMAGE)
    assert driver.asked == [
        {
            "kind": 9, "rank": 4, "address": 0x7F0000000010, "extents": [256, 20, 14, 8],
            "strides": [512, 10240, 143360], "lower": [-2, -1], "upper": [-3, 0], "channels": 64, "pixels": 128,
            "steps": [1, 2, 1, 1], "interleave": 0, "swizzle": 3, "promotion": 3, "fill": 0,
        }
    ]  # fmt: skip
    assert int(made.view(np.uint64)[1]) == 2**64 - 1
    small = tensor_maps.encoded(4096, **{**IMAGE, "shape": (2, 7, 7, 64)})
    assert int(small.view(np.uint64)[1]) == 2**64 - 1 - (1 << 21), "as of boxes: under 128 KB, of a driver of 13.0"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"box": (1025, 64)}, "1025 elements in dimension 0; a tensor map takes 1 to 1024"),
        ({"box": (64, 264), "swizzle": 0}, "264 elements in dimension 1; a tensor map takes 1 to 256"),
        ({"lower": (-129, 0)}, "a corner of -129 pixels; a tensor map takes -128 to 127"),
        ({"upper": (0, 128)}, "a corner of 128 pixels"),
        ({"upper": (0,)}, "corners of 2 and 1"),
        ({"shape": (14, 20, 64)}, "pixels of 3 dimensions"),
        ({"box": (1, 8, 8, 64)}, "a box of 4"),
        ({"steps": (1, 9, 1, 1)}, "a step of 9 elements in dimension 1"),
        ({"steps": (2, 1)}, "2 steps for 4 dimensions"),
    ],
)
def test_limits_of_pixels(driver, change, words):
    with pytest.raises(tensor_maps.TensorMapError, match="x: .*" + re.escape(words)) as caught:
        tensor_maps.encoded(4096, **{**IMAGE, **change})
    assert len(caught.value.args) == 1 and not driver.asked


def test_numbers_are_those_of_the_header():
    """The enumerations of cuda.h, counted as a compiler does."""
    headers = [p for folder in _headers() if (p := Path(folder) / "cuda.h").exists()]
    if not headers:
        pytest.skip("the CUDA headers are not installed")
    text = re.sub(r"/\*.*?\*/", "", headers[0].read_text(encoding="utf-8", errors="replace"), flags=re.S)
    number = {}
    for body in re.findall(r"typedef enum CUtensorMap\w+ \{(.*?)\}", text, re.S):
        names = re.findall(r"CU_TENSOR_MAP_\w+", body)
        number |= {name.removeprefix("CU_TENSOR_MAP_"): n for n, name in enumerate(names)}
    unsigned = {"bool": "UINT8", "int8": "UINT8", "int16": "UINT16", "float8_e4m3": "UINT8", "float8_e5m2": "UINT8"}
    for dtype, (kind, _) in tensor_maps.TENSOR_MAP_TYPES.items():
        assert kind == number["DATA_TYPE_" + unsigned.get(dtype, dtype.upper())], dtype
    assert {0: number["SWIZZLE_NONE"]} | {n: number[f"SWIZZLE_{n}B"] for n in (32, 64, 128)} == tensor_maps.SWIZZLES
    assert number["INTERLEAVE_NONE"] == tensor_maps._NO_INTERLEAVE
    assert number["L2_PROMOTION_L2_256B"] == tensor_maps._L2_256_BYTES
    assert number["FLOAT_OOB_FILL_NONE"] == tensor_maps._ZEROS_OUTSIDE


def _headers():
    pytest.importorskip("cupy", reason="cupy is not installed")
    return cuda._include_folders()


@pytest.mark.parametrize(
    ("version", "rows", "cleared"),
    [(13010, 127, True), (12040, 127, True), (13010, 128, False), (13020, 127, False)],
)
def test_small_arrays_with_drivers_up_to_13_1(driver, version, rows, cleared):
    driver.version = version
    made = tensor_maps.encoded(4096, **{**PLANE, "shape": (rows, 512)})
    words = made.view(np.uint64)
    assert int(words[1]) == 2**64 - 1 - (cleared << 21)
    assert [int(w) for w in words[2:]] == [2**64 - 1] * 14


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"address": 4104}, "8 bytes past a multiple of 16"),
        ({"shape": (300, 511)}, "dimension 0 has a stride of 1022 bytes"),
        ({"shape": (2, 1 << 10, 1 << 29), "box": (1, 1, 64)}, f"dimension 0 has a stride of {1 << 40} bytes"),
        ({"shape": (0, 512)}, "dimension 0 has 0 elements"),
        ({"shape": ((1 << 31) + 1, 512)}, f"dimension 0 has {(1 << 31) + 1} elements"),
        ({"box": (257, 64)}, "257 elements in dimension 0"),
        ({"box": (0, 64)}, "0 elements in dimension 0"),
        ({"box": (128, 4), "swizzle": 0}, "a row of a box has 8 bytes, not a multiple of 16"),
        ({"box": (128, 72)}, "a row of a box has 144 bytes, more than the 128"),
        ({"box": (128, 64), "swizzle": 64}, "a row of a box has 128 bytes, more than the 64"),
        ({"swizzle": 16}, "a swizzle of 16 bytes"),
        ({"dtype": "float8"}, "no float8"),
        ({"shape": (), "box": ()}, "0 dimensions"),
        ({"shape": (1,) * 6, "box": (1,) * 6}, "6 dimensions"),
        ({"box": (64,)}, "2 dimensions with a box of 1"),
        ({"steps": (9, 1)}, "a step of 9 elements in dimension 0; a tensor map takes 1 to 8"),
        ({"steps": (0, 1)}, "a step of 0 elements in dimension 0"),
        ({"steps": (1, 2)}, "a step of 2 in the last dimension, whose elements are copied side by side"),
        ({"steps": (2,)}, "1 steps for 2 dimensions"),
    ],
)
def test_limits_are_refused_before_the_driver_is_asked(driver, change, words):
    given = {"address": 4096, **PLANE, **change}
    with pytest.raises(tensor_maps.TensorMapError, match="x: .*" + re.escape(words)) as caught:
        tensor_maps.encoded(given.pop("address"), **given)
    assert len(caught.value.args) == 1 and not driver.asked


def test_the_largest_that_fits(driver):
    shape, box = (1 << 31, 1, (1 << 39) - 8), (256, 256, 64)
    tensor_maps.encoded(16, **{**PLANE, "shape": (2, 2, 1 << 20), "box": box})
    assert tensor_maps.broken_limits(16, "x", "bfloat16", (1 << 31, 512), (256, 64), 128) == []
    assert [m[:14] for m in tensor_maps.broken_limits(16, "x", "bfloat16", shape, box, 128)] == ["x: dimension 2"]
    assert len(driver.asked) == 1


def test_every_broken_limit_is_named(driver):
    with pytest.raises(LaunchError) as caught:
        cuda_device.encoded_map(TensorMap("m", "x", "float32", (10, 33), (300, 8)), 4100)
    assert caught.value.code == "launch.tensor-map"
    assert [re.search(r"\d+ (?:bytes|elements)", p.message)[0] for p in caught.value.problems] == [
        "4 bytes", "132 bytes", "300 elements",
    ]  # fmt: skip


def test_a_driver_that_refuses_and_one_without_maps(driver, monkeypatch):
    driver.status = 801
    with pytest.raises(LaunchError, match=r"x: the driver refuses the tensor map x_map \(CUDA error 801\)") as caught:
        cuda_device.encoded_map(TensorMap(**PLANE), 4096)
    assert caught.value.code == "launch.tensor-map"
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    tensor_maps._driver.cache_clear()
    with pytest.raises(tensor_maps.TensorMapError, match="makes no tensor maps"):
        tensor_maps.encoded(4096, **PLANE)


# --- launches


def functions(program):
    return program._module._functions


def test_a_call(device, driver):
    program = CompiledProgram(SOURCE, device)
    np.testing.assert_array_equal(program(A, B), A + B)
    assert len(device._cupy.arrived) == 2, "the arrays are on the device before a kernel on any stream runs"
    (grid, block, values, shared), = functions(program)["add"].launches  # fmt: skip
    assert (grid, block) == ((1, 1, 1), (32, 1, 1))
    assert [getattr(v, "nbytes", 0) for v in values] == [128, 8, 128], "a map, an address, a map"
    memories = program._memories() | program._staging
    assert [fake_cuda.address_of(v) for v in values] == [memories[n].ptr for n in "ACW"]
    assert driver.addresses == [memories[n].ptr for n in "BWAW"]
    assert [a["swizzle"] for a in driver.asked] == [0, 3, 3, 3]
    np.testing.assert_array_equal(program(A + 1, B), A + B + 1)
    assert len(driver.asked) == 4, "the arrays lie where they lay"
    assert functions(program)["add"].launches[1][2][0] is values[0]
    assert shared == 65536 and device.attributes == [(77, 8, 65536)]
    assert program._module._cubin.arch == "sm_90a"


def test_programs_on_addresses_of_the_caller(device, driver, monkeypatch):
    """What frameworks give: their memory and stream, and nobody waits. Not yet run on a GPU."""
    streams, cuda_of = [], device._cupy.cuda

    @contextlib.contextmanager
    def on_stream(address):
        streams.append(address)
        yield
        streams.append(None)

    cuda_of.ExternalStream = on_stream
    cuda_of.UnownedMemory = lambda address, nbytes, owner, number: SimpleNamespace(ptr=address)
    cuda_of.MemoryPointer = lambda memory, offset: fake_cuda.Memory(memory, memory.ptr + offset)
    program = CompiledProgram(SOURCE, device)
    run = OnPointers(program)
    assert run.workspace_bytes == 2048 and set(run.align.values()) == {16}
    monkeypatch.setattr(type(device), "finish", None)  # whoever waits fails
    a, b, c = (fake_cuda.empty(SHAPE, "float32") for _ in "abc")
    a.host[:], b.host[:] = A, B
    space = fake_cuda.alloc(run.workspace_bytes)
    for factor in (1, 2):
        a.host[:] = factor * A
        run([x.data.ptr for x in (a, b, c)], 99, space.ptr)
        np.testing.assert_array_equal(c.host, factor * A + B)
    assert streams == [99, None, 99, None]
    for _, _, values, _ in functions(program)["add"].launches:
        assert [fake_cuda.address_of(v) for v in values] == [a.data.ptr, c.data.ptr, space.ptr]


def test_a_part_of_a_grid_has_whole_clusters(device):
    pack, add = SOURCE.kernels
    program = CompiledProgram(replace(SOURCE, kernels=(pack, replace(add, grid=(4, 1, 1), cluster=2))), device)
    program.warm(A, B)
    assert [grid for grid, *_ in functions(program)["add"].launches] == [(2, 1, 1)]


def test_a_context_that_a_kernel_took_along(device):
    def fail():
        raise RuntimeError("cudaErrorIllegalAddress")

    device._cupy.cuda.runtime = SimpleNamespace(deviceSynchronize=lambda: None)
    assert device.works()
    device._cupy.cuda.runtime.deviceSynchronize = fail
    assert not device.works()


def test_bound_launches_keep_their_maps(device, driver):
    program = CompiledProgram(SOURCE, device)
    first = program.bind(A, B)
    before = len(driver.asked)
    second = program.bind(2 * A, 3 * B)
    assert len(driver.asked) == before + 4, "other arrays, and a packed copy of its own"
    np.testing.assert_array_equal(program(4 * A, B), 4 * A + B)
    made = len(driver.asked)
    for _ in range(3):
        first()
        second()
    np.testing.assert_array_equal(first.wait(), A + B)
    np.testing.assert_array_equal(second.wait(), 2 * A + 3 * B)
    first.refresh()
    assert first.finish() is None and len(driver.asked) == made, "a bound launch encodes nothing"
    program.time(A, B, repeat=2, min_seconds=0)
    assert len(driver.asked) == made + 4


def test_a_sequence_reads_what_an_earlier_launch_wrote(device, driver):
    program = CompiledProgram(SOURCE, device)
    one = program.bind(A, B)
    two = program.bind(one.results, A)
    net = sequence([one, two])
    made = len(driver.asked)
    np.testing.assert_array_equal(net.run(), A + B + A)
    np.testing.assert_array_equal(net.run(), A + B + A)
    assert len(driver.asked) == made
    last = functions(program)["add"].launches
    assert fake_cuda.address_of(last[-1][2][0]) == fake_cuda.address_of(last[-2][2][1]), "one memory for both"


def test_a_sequence_packs_again_what_it_writes(device):
    program = CompiledProgram(SOURCE, device)
    one = program.bind(A, B)
    net = sequence([one, program.bind(A, one.results)])
    packed = len(functions(program)["pack"].launches)
    for _ in range(2):
        np.testing.assert_array_equal(net.run(), A + A + B)
    assert len(functions(program)["pack"].launches) == packed + 2


def test_what_runs_once_goes_by_the_arrays_of_maps():
    pack, add = SOURCE.kernels
    again = replace(pack, args=("W_store", "V"), maps=pack.maps[1:])
    chain = replace(SOURCE, kernels=(pack, again, add), params=(*SOURCE.params, replace(SOURCE.params[3], name="V")))
    assert chain.made_early == () and chain.fixed({"B": B.tobytes()}).made_early == (pack, again)
    both = replace(add, args=("A_map", "C", "B_map"), maps=(add.maps[0], pack.maps[0]))
    assert replace(SOURCE, kernels=(pack, both)).prepackable == ()


def test_inputs_fixed_ahead(device, driver):
    program = CompiledProgram(SOURCE, device).prepack(B=B)
    assert [p.name for p in SOURCE.prepackable] == ["B"] and "B" not in program._fixed
    made = len(driver.asked)
    np.testing.assert_array_equal(program(A), A + B)
    assert len(driver.asked) == made + 2 and len(functions(program)["pack"].launches) == 1
    whole = SOURCE.fixed({"A": A.tobytes(), "B": B.tobytes()})
    assert [k.name for k in whole.made_early] == ["pack"] and whole.kernels[1].params == ("A", "C", "W")
    np.testing.assert_array_equal(CompiledProgram(whole, device)(), A + B)


def test_guarded_runs(device):
    results, problems = CompiledProgram(SOURCE, device).run_guarded(A, B)
    np.testing.assert_array_equal(results, A + B)
    assert problems == ()


def test_an_address_that_no_map_takes(device, driver):
    module = CompiledProgram(SOURCE, device)._module
    memory = device.allocate(4096)
    with pytest.raises(LaunchError) as caught:
        module.step(SOURCE.kernels[0], [memory + 8, memory], True)
    assert caught.value.code == "launch.tensor-map" and "B: " in str(caught.value) and not driver.asked


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "C"}, "has the name of another argument"),
        ({"array": "Q"}, "is of Q, which is no array"),
        ({"shape": (17, 32)}, "covers more than the 2048 bytes of A"),
        ({"name": "other"}, "argument A_map is no parameter"),
    ],
)
def test_maps_that_do_not_fit_the_program(change, words):
    pack, add = SOURCE.kernels
    wrong = replace(add, maps=(replace(add.maps[0], **change), add.maps[1]))
    with pytest.raises(CompileError, match=re.escape(words)) as caught:
        check_source(replace(SOURCE, kernels=(pack, wrong)), Target.parse("cuda"))
    assert caught.value.code == "compile.signature"


def test_maps_are_for_cuda():
    check_source(SOURCE, Target.parse("cuda"))
    with pytest.raises(CompileError, match="opencl has no tensor maps"):
        check_source(replace(SOURCE, language="opencl"), Target.parse("opencl"))
