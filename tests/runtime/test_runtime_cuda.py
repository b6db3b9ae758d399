import sys
from types import SimpleNamespace

import pytest
from runtime_sources import ADD

import tensorir as tir
from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import CompileError, DeviceError
from tensorir.runtime import cuda, cuda_device
from tensorir.runtime.cache import default_cache
from tensorir.runtime.device import open_device
from tensorir.runtime.limits import check_registers

TEXT = """extern "C" __global__ void __launch_bounds__(128) scale(const float* __restrict__ A,
                                                               float* __restrict__ C, int n) {
  __shared__ float turned[128];
  turned[threadIdx.x] = A[blockIdx.x * 128 + threadIdx.x];
  __syncthreads();
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) C[i] = 3.0f * turned[127 - threadIdx.x] + 1.0f;
}
extern "C" __global__ void copy4(const float4* __restrict__ A, float4* __restrict__ C) {
  C[threadIdx.x] = A[threadIdx.x];
}
"""


@pytest.fixture(scope="module", autouse=True)
def nvrtc():
    pytest.importorskip("cupy", reason="cupy is not installed")
    try:
        return cuda.nvrtc_version()
    except DeviceError as error:
        pytest.skip(error.problems[0].message)


def test_compile_reports_resources():
    cubin = cuda.compile_cubin(TEXT, "sm_90a")
    assert cubin.data[:4] == b"\x7fELF"
    assert len(cubin.data) % 8 == 0
    assert set(cubin.kernels) == {"scale", "copy4"}
    use = cubin.kernels["scale"]
    assert use.shared_bytes == 512
    assert use.barriers == 1
    assert 0 < use.registers < 64
    assert (cubin.spills, cubin.shared_bytes) == (0, 512)
    assert cubin.registers == max(k.registers for k in cubin.kernels.values())


def test_spills_are_seen():
    loads = "\n".join(f"  float x{i} = A[{i} * 4096 + threadIdx.x * 3];" for i in range(64))
    sums = "\n".join(f"  s += x{i} * x{(i * 7 + 3) % 64};" for i in range(64))
    text = f'extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* A, float* C) {{\n{loads}\n'
    text += f"  __syncthreads();\n  float s = 0;\n{sums}\n  C[threadIdx.x] = s;\n}}\n"
    assert cuda.compile_cubin(text, "sm_80", ("-maxrregcount=24",)).spills > 0


def test_no_registers_are_spilled_for_the_sake_of_more_blocks():
    """NVRTC keeps this tile in 128 registers, of which four blocks have room, and spills the others of 130."""
    work = tir.ops.conv2d(n=16, c=64, h=56, w=56, k=64, r=3, s=3, pad=1, dtype="float16")
    s = tir.Schedule(work.outputs, "cuda -arch=sm_90a")
    config = {"bm": 64, "bn": 128, "wm": 64, "wn": 32, "bk": 32, "depth": 4, "in_flight": 1, "raster": 1, "splits": 1}
    tir.auto(work.outputs, s.target)["gpu_tile_mma"].function(s, {**config, "atomic": 0, "rest": 0, "staged": 0})
    text = s.source()
    assert "__launch_bounds__(128)" in text
    assert cuda.compile_cubin(text, "sm_90a", cache=False).spills == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_sass(arch):
    cubin = cuda.compile_cubin(TEXT, arch)
    try:
        text = cuda.sass(cubin)
    except DeviceError as error:
        pytest.skip(error.problems[0].message)
    counts = cuda.sass_opcodes(text)
    assert counts == cuda.sass_opcodes(cubin)
    assert any(op.startswith("LDG.E.128") for op in counts)
    assert sum(n for op, n in counts.items() if op.startswith("BAR")) >= 1
    copy = cuda.sass_opcodes(text, "copy4")
    assert "FFMA" in counts
    assert "FFMA" not in copy
    assert any(op.startswith("STG.E.128") for op in copy)


def test_damaged_cubin_is_refused():
    with pytest.raises((CompileError, DeviceError)) as caught:
        cuda.sass(b"no cubin")
    assert caught.value.code in ("compile.sass", "device.no-nvdisasm")


def test_the_headers_that_generated_code_uses_compile():
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\n"
    text += 'extern "C" __global__ void k(__half* a) { a[0] = __hadd(a[1], a[2]); }'
    if not cuda._include_folders():
        pytest.skip("the CUDA headers are not installed")
    assert "k" in cuda.compile_cubin(text, "sm_80").kernels


def test_compile_errors():
    with pytest.raises(CompileError) as caught:
        cuda.compile_cubin('extern "C" __global__ void k() {\n  zz;\n}', "sm_80")
    assert caught.value.code == "compile.nvrtc"
    assert "zz" in caught.value.log
    assert "2 |   zz;" in str(caught.value)
    with pytest.raises(CompileError) as caught:
        cuda.compile_cubin(TEXT, "sm_12")
    assert caught.value.code == "compile.nvrtc"


def test_cubins_are_cached():
    first, second = cuda.compile_cubin(TEXT), cuda.compile_cubin(TEXT)
    assert (first.cached, second.cached) == (False, True)
    assert first == second
    assert not cuda.compile_cubin(TEXT, options=("-fmad=false",)).cached
    assert not cuda.compile_cubin(TEXT, cache=False).cached
    path = next(default_cache().directory.glob("*.bin"))
    path.write_bytes(b"x")
    assert len(list(default_cache().directory.glob("*.bin"))) == 2
    assert {cuda.compile_cubin(TEXT).data, first.data} == {first.data}


def test_headers_count_by_their_version_not_their_place(monkeypatch):
    """A cubin travels to a machine where CUDA's headers lie elsewhere."""
    folders = cuda._include_folders()
    assert all(any(c.isdigit() for c in version) for version in folders.values())
    cuda.compile_cubin(TEXT)
    monkeypatch.setattr(cuda, "_include_folders", lambda: {f"/elsewhere{f}": v for f, v in folders.items()})
    assert cuda.compile_cubin(TEXT).cached
    monkeypatch.setattr(cuda, "_include_folders", lambda: dict.fromkeys(folders, "cudart 1"))
    assert not cuda.compile_cubin(TEXT).cached


def test_beside_the_architecture_of_cupy_nvrtc_takes_that_of_hopper(monkeypatch):
    """Exported loaders rely on it: CuPy compiles for sm_90, where registers cannot change hands between warps."""
    from cupy.cuda import compiler

    if compiler.nvrtc.getVersion() < (13, 0):
        pytest.skip("an architecture given twice is an error")
    # what it finds out itself, asking the device
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch: (f"-arch=sm_{arch}", "cubin"))
    text = 'extern "C" __global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 120;"); }'
    with pytest.raises(compiler.CompileException, match=r"not supported on .target 'sm_90'"):
        compiler.compile_using_nvrtc(text, ("--std=c++17",), arch="90")
    code, _ = compiler.compile_using_nvrtc(text, ("--std=c++17", "-arch=sm_90a"), arch="90")
    assert code[:4] == b"\x7fELF"


def test_no_driver_and_no_cupy(monkeypatch):
    listed = cuda_device.list_devices()
    if not listed[0].usable:
        assert listed[0].reason
        with pytest.raises(DeviceError) as caught:
            open_device("cuda")
        assert caught.value.code == "device.no-cuda-driver"
        with pytest.raises(DeviceError) as caught:
            open_device("cuda:0")
        assert caught.value.code == "device.no-cuda-driver"
    _without("cupy", monkeypatch)
    with pytest.raises(DeviceError) as caught:
        cuda.compile_cubin(TEXT)
    assert caught.value.code == "device.no-cupy"
    assert "pip install cupy" in str(caught.value)
    with pytest.raises(DeviceError) as caught:
        open_device("cuda:0")
    assert caught.value.code == "device.no-cupy"


def _without(package, monkeypatch):
    """Make imports of a package fail as they do where it is not installed."""
    for name in [package, *(n for n in sys.modules if n.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.gpu
def test_on_a_gpu():
    np = pytest.importorskip("numpy")
    from tensorir.runtime.launch import CompiledProgram

    try:
        device = open_device("cuda:0")
    except DeviceError as error:
        pytest.skip(error.problems[0].message)
    text = ADD.text.replace("__kernel", 'extern "C" __global__').replace("__global const", "const")
    text = text.replace("__global float", "float").replace("get_global_id(0)", "blockIdx.x * blockDim.x + threadIdx.x")
    source = Source("add", "cuda", text.replace(" restrict", " __restrict__"), ADD.params, ADD.kernels)
    a = np.arange(50, dtype=np.float32).reshape(5, 10)
    program = CompiledProgram(source, device)
    np.testing.assert_array_equal(program(a, a), 3 * a)
    assert program.run_guarded(a, a)[1] == ()
    assert program.time(a, a, repeat=3, min_seconds=0).median_s > 0
    cupy = pytest.importorskip("cupy")
    got = program(cupy.asarray(a), cupy.asarray(a))
    assert isinstance(got, cupy.ndarray)
    np.testing.assert_array_equal(got.get(), 3 * a)
    dynamic = """extern "C" __global__ void big(const float* A, float* C) {
  extern __shared__ float s[];
  s[24000 + threadIdx.x] = A[threadIdx.x];
  __syncthreads();
  C[threadIdx.x] = s[24000 + 9 - threadIdx.x];
}"""
    params = tuple(ADD.params[0].__class__(n, "float32", (10,), r) for n, r in (("A", "input"), ("C", "output")))
    launch = KernelLaunch("big", ("A", "C"), (1, 1, 1), (10, 1, 1), shared_bytes=96040)
    b = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(
        CompiledProgram(Source("big", "cuda", dynamic, params, (launch,)), device)(b), b[::-1]
    )


def test_headers_are_found_without_their_wheel(tmp_path, monkeypatch):
    """A finder that fails or knows no headers: those of a toolkit, as far as it has them."""

    def lost(_):
        raise RuntimeError("no such library")

    monkeypatch.setitem(sys.modules, "cuda.pathfinder", SimpleNamespace(find_nvidia_header_directory=lost))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").touch()
    assert cuda._toolkit_headers() != tmp_path / "include", "of another toolkit, or none: without the runtime's"
    (tmp_path / "include" / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
    assert cuda._toolkit_headers() == tmp_path / "include"
    monkeypatch.setattr(cuda, "load_cupy", lambda: SimpleNamespace(__file__=str(tmp_path), __version__="14"))
    assert cuda._include_folders() == {str(tmp_path / "include"): "cudart 13000"}


def test_headers_of_pip_s_and_of_cupy_s_own_wheels_are_found(tmp_path, monkeypatch):
    """CuPy 13 without a finder and without a toolkit: PyTorch's wheels bring headers, and CuPy that of halves."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    wheels = tmp_path / "nvidia"
    spec = SimpleNamespace(submodule_search_locations=[str(wheels)])
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: spec if name == "nvidia" else None)
    kept = cuda._toolkit_folders
    monkeypatch.setattr(cuda, "_toolkit_folders", lambda: (f for f in kept() if f.is_relative_to(tmp_path)))
    cupy = tmp_path / "cupy"
    monkeypatch.setattr(cuda, "load_cupy", lambda: SimpleNamespace(__file__=str(cupy / "x.py"), __version__="13.6.0"))
    assert cuda._include_folders() == {}
    for major in (11, 12):
        folder = cupy / f"_core/include/cupy/_cuda/cuda-{major}"
        folder.mkdir(parents=True)
        (folder / "cuda_fp16.h").touch()
    assert cuda._include_folders() == {str(folder): "cupy 13.6.0"}, "the newest of CuPy's"
    for name, version in (("cuda_runtime", 12090), ("cu13", 13020)):
        include = wheels / name / "include"
        include.mkdir(parents=True)
        (include / "cuda_fp16.h").touch()
        (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {version}\n")
        assert cuda._include_folders() == {str(include): f"cudart {version}"}


def test_warpgroups_do_not_ask_for_registers_that_a_block_never_has():
    """A kernel with setmaxnreg would hang: it begins with 80 registers a thread where two blocks are to fit."""
    w = tir.ops.matmul(m=280, n=56, k=264, tb=True, dtype="bfloat16")
    config = dict(groups=2, rows=1, bn=64, depth=3, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0)
    s = w.schedule(config | dict(pingpong=0), "gpu_tile_wgmma", "cuda -arch=sm_90a -units=2")
    text, (launch,) = s.source(), s.emitted().kernels
    for bounds, fits in (("384, 1", True), ("384, 2", False), ("1024, 1", False)):
        changed = text.replace("__launch_bounds__(384, 1)", f"__launch_bounds__({bounds})")
        use = cuda.compile_cubin(changed, "sm_90a").kernels[launch.name]
        if fits:
            check_registers(launch, changed, use.registers)
            assert use.registers * 384 == (232 * 2 + 40) * 128
        else:
            with pytest.raises(CompileError, match="ask for 64512 registers") as caught:
                check_registers(launch, changed, use.registers)
            assert caught.value.code == "compile.registers"
