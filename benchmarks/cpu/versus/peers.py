"""The libraries to compare with, one process each: python -m versus.peers NAME.

Each works on the same inputs in its own favourite way. Packing ahead of the clock is allowed where ``PEERS`` says so.
What is not installed says so and takes no part.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from versus.protocol import Array, Competitor, Missing, Ready, Skip, repeat, serve
from versus.shapes import Conv, Matmul, Problem


class NumPy:
    """``numpy.matmul``, which is its BLAS."""

    def __init__(self) -> None:
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        self.versions = {"numpy": np.__version__, "blas": f"{blas.get('name', '?')} {blas.get('version', '')}".strip()}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        if not isinstance(problem, Matmul):
            raise Skip("NumPy has no convolution")
        out = np.empty(problem.shapes[2], np.float32)
        return Ready(repeat(lambda: np.matmul(x, w, out=out)), lambda: out)


class Torch:
    """PyTorch's CPU build in one of its modes.

    mode: "plain" NCHW tensors, "cl" channels_last, "blocked" oneDNN tensors in and out, "packed" weights in oneDNN's
          own layout, "packed_cl" the same with channels_last images, "mkl" MKL's packed matrices
    """

    def __init__(self, mode: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.torch.set_grad_enabled(False)
        self.mode = mode
        self.versions = {"torch": version("torch"), "capability": self.torch.backends.cpu.get_cpu_capability()}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        a, b = self.torch.from_numpy(x), self.torch.from_numpy(w)
        call = self._matmul(a, b) if isinstance(problem, Matmul) else self._conv(problem, a, b)
        return Ready(repeat(call), lambda: _dense(call()).contiguous().numpy())

    def _matmul(self, a: Any, b: Any) -> Callable[[], Any]:
        torch, rows = self.torch, a.shape[0]
        if self.mode == "plain":
            out = torch.empty(rows, b.shape[1])
            return lambda: torch.mm(a, b, out=out)
        weights = b.t().contiguous()
        if self.mode == "blocked":
            blocked, own = a.to_mkldnn(), weights.to_mkldnn()
            return lambda: torch.nn.functional.linear(blocked, own)
        if self.mode == "packed":
            packed = torch.ops.mkldnn._reorder_linear_weight(weights, rows)
            return lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")
        if self.mode == "mkl":
            if not torch.backends.mkl.is_available():
                raise Skip("this build of torch has no MKL")
            packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, rows)
            return lambda: torch.ops.mkl._mkl_linear(a, packed, weights, None, rows)
        raise Skip("channels_last says nothing about matrices")

    def _conv(self, t: Conv, x: Any, w: Any) -> Callable[[], Any]:
        torch, stride, pad, one = self.torch, [t.stride] * 2, [t.pad] * 2, [1, 1]
        if self.mode == "mkl":
            raise Skip("MKL has matrix products only")
        if self.mode.endswith("cl"):
            x, w = (v.contiguous(memory_format=torch.channels_last) for v in (x, w))
        if self.mode.startswith("packed"):
            packed = torch.ops.mkldnn._reorder_convolution_weight(w, pad, stride, one, t.groups, list(x.shape))
            pointwise = torch.ops.mkldnn._convolution_pointwise
            return lambda: pointwise(x, packed, None, pad, stride, one, t.groups, "none", [], "")
        if self.mode == "blocked":
            x = x.to_mkldnn()
            reorder = torch._C._nn.mkldnn_reorder_conv2d_weight
            w = reorder(w.to_mkldnn(), pad, stride, one, t.groups, list(x.shape))
        return lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad, groups=t.groups)


def _dense(tensor: Any) -> Any:
    return tensor.to_dense() if tensor.is_mkldnn else tensor


class OnnxRuntime:
    """ONNX Runtime's CPU provider on a graph of one node.

    constant: the weights are constants of the graph, which it packs when it loads; else they are a second input
    """

    def __init__(self, constant: bool) -> None:
        self.ort: Any = importlib.import_module("onnxruntime")
        self.onnx: Any = importlib.import_module("onnx")
        self.constant = constant
        self.versions = {"onnxruntime": version("onnxruntime"), "onnx": version("onnx")}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        if not self.constant and isinstance(problem, Conv):
            raise Skip("weights of a convolution are constants")
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = int(os.environ["OMP_NUM_THREADS"]), 1
        options.log_severity_level = 3
        model = self._model(problem, w).SerializeToString()
        session = self.ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        make = self.ort.OrtValue.ortvalue_from_numpy
        out = make(np.empty(problem.shapes[2], np.float32))
        binding.bind_ortvalue_input("x", make(x))
        if not self.constant:
            binding.bind_ortvalue_input("w", make(w))
        binding.bind_ortvalue_output("y", out)
        return Ready(repeat(lambda: session.run_with_iobinding(binding)), out.numpy)

    def _model(self, problem: Problem, w: Array) -> Any:
        helper, float32 = self.onnx.helper, self.onnx.TensorProto.FLOAT
        if isinstance(problem, Matmul):
            node = helper.make_node("MatMul", ["x", "w"], ["y"])
        else:
            node = helper.make_node(
                "Conv", ["x", "w"], ["y"], strides=[problem.stride] * 2, pads=[problem.pad] * 4, group=problem.groups,
                kernel_shape=[problem.r] * 2,
            )  # fmt: skip
        x_shape, w_shape, y_shape = problem.shapes
        values = [helper.make_tensor_value_info("x", float32, x_shape)]
        if not self.constant:
            values.append(helper.make_tensor_value_info("w", float32, w_shape))
        result = [helper.make_tensor_value_info("y", float32, y_shape)]
        constants = [self.onnx.numpy_helper.from_array(w, "w")] if self.constant else []
        graph = helper.make_graph([node], "one", values, result, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        return model


class Tvm:
    """TVM's compiler with the blocked, packed, vectorised, parallel matmul of its own tutorial.

    Its tuner is not run, and it ships no CPU schedules of convolutions, so those are left out.
    """

    TILE, DEPTH = 32, 4

    def __init__(self) -> None:
        self.tvm: Any = importlib.import_module("tvm")
        self.te: Any = importlib.import_module("tvm.te")
        self.s_tir: Any = importlib.import_module("tvm.s_tir")
        self.versions = {"tvm": str(self.tvm.__version__)}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        if not isinstance(problem, Matmul):
            raise Skip("TVM has no CPU schedule of convolutions without tuning")
        if problem.m % self.TILE or problem.n % self.TILE or problem.k % self.DEPTH:
            raise Skip(f"the tutorial's schedule wants multiples of {self.TILE}")
        schedule = self._schedule(problem)
        run = self.tvm.compile(schedule.mod, target=self.tvm.target.Target.from_device(self.tvm.cpu()))["main"]
        device_array = self.tvm.runtime.tensor
        a, b, c = device_array(x), device_array(w), device_array(np.zeros(problem.shapes[2], np.float32))
        return Ready(repeat(lambda: run(a, b, c)), c.numpy, {"schedule": "tutorial"})

    def _schedule(self, t: Matmul) -> Any:
        te, tile = self.te, self.TILE
        k = te.reduce_axis((0, t.k), "k")
        a, b = te.placeholder((t.m, t.k), name="A"), te.placeholder((t.k, t.n), name="B")
        packed = te.compute((t.n // tile, t.k, tile), lambda p, q, r: b[q, p * tile + r], name="packed")
        c = te.compute((t.m, t.n), lambda i, j: te.sum(a[i, k] * packed[j // tile, k, j % tile], axis=k), name="C")
        s = self.s_tir.Schedule(te.create_prim_func([a, b, c]))
        block = s.get_sblock("C")
        i, j, k = s.get_loops(block)
        io, ii = s.split(i, [None, tile])
        jo, ji = s.split(j, [None, tile])
        ko, ki = s.split(k, [None, self.DEPTH])
        s.reorder(io, jo, ko, ii, ki, ji)
        s.vectorize(ji)
        s.unroll(ki)
        s.parallel(io)
        written = s.cache_write(block, 0, "global")
        s.reverse_compute_at(written, jo)
        s.vectorize(s.get_loops(written)[-1])
        s.decompose_reduction(block, ko)
        p, _, r = s.get_loops(s.get_sblock("packed"))
        s.vectorize(r)
        s.parallel(p)
        return s


class Halide:
    """Halide's JIT with the schedule that its Adams2019 autoscheduler finds."""

    def __init__(self) -> None:
        self.hl: Any = importlib.import_module("halide")
        self.hl.load_plugin(str(self._plugin("autoschedule_adams2019")))
        self.versions = {"halide": version("halide")}

    def _plugin(self, name: str) -> Path:
        """The wheel's file: the loader of plugins looks into the system's folders only."""
        found = sorted(Path(self.hl.__file__).parent.glob(f"lib*/lib{name}.*"))
        return found[0] if found else Path(f"lib{name}.so")

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        out = np.zeros(problem.shapes[2], np.float32)
        if isinstance(problem, Conv):  # padded ahead of the clock, in its favour
            x = np.pad(x[0], ((0, 0), *[(problem.pad, problem.pad)] * 2))
        pipeline = self._matmul(problem, x, w) if isinstance(problem, Matmul) else self._conv(problem, x, w)
        threads = os.environ["HL_NUM_THREADS"]
        target = self.hl.get_jit_target_from_environment()
        pipeline.apply_autoscheduler(target, self.hl.AutoschedulerParams("Adams2019", {"parallelism": threads}))
        self._kept = [x, w]  # its buffers hold addresses, not references
        buffer = self.hl.Buffer(out if out.ndim == 2 else out[0])
        return Ready(repeat(lambda: pipeline.realize(buffer)), lambda: out, {"schedule": "Adams2019"})

    # its first index is the innermost: B.T of NumPy's shapes

    def _matmul(self, t: Matmul, x: Array, w: Array) -> Any:
        hl = self.hl
        a, b, i, j = hl.Buffer(x), hl.Buffer(w), hl.Var("i"), hl.Var("j")
        k, c = hl.RDom([(0, t.k)]), hl.Func("c")
        c[j, i] = 0.0
        c[j, i] += a[k.x, i] * b[j, k.x]
        c.set_estimates([(0, t.n), (0, t.m)])
        return hl.Pipeline(c)

    def _conv(self, t: Conv, x: Array, w: Array) -> Any:
        hl = self.hl
        image, weights = hl.Buffer(x), hl.Buffer(w)
        px, py, o, y = hl.Var("x"), hl.Var("y"), hl.Var("o"), hl.Func("y")
        k = hl.RDom([(0, t.r), (0, t.r), (0, t.c // t.groups)])
        channel = o if t.depthwise else k.z
        y[px, py, o] = 0.0
        y[px, py, o] += image[px * t.stride + k.x, py * t.stride + k.y, channel] * weights[k.x, k.y, k.z, o]
        y.set_estimates([(0, t.p), (0, t.p), (0, t.o)])
        return hl.Pipeline(y)


class ClBlast:
    """CLBlast through its C interface on PoCL, with the parameters that it ships."""

    ROW_MAJOR, PLAIN, CORRELATION = 101, 111, 151

    def __init__(self) -> None:
        import ctypes
        import ctypes.util

        from versus.opencl import Device

        found = ctypes.util.find_library("clblast") or os.environ.get("CLBLAST_LIBRARY")
        if not found:
            raise Missing("libclblast is not installed (CLBLAST_LIBRARY can name the file)")
        self.c, self.library = ctypes, ctypes.CDLL(found)
        self.device = Device()
        self.versions = {"clblast": os.path.basename(os.path.realpath(found)), "opencl": self.device.platform}

    def prepare(self, problem: Problem, x: Array, w: Array) -> Ready:
        if isinstance(problem, Conv) and problem.groups > 1:
            raise Skip("CLBlast has no grouped convolution")
        out = self.device.array(np.zeros(problem.shapes[2], np.float32))
        buffers = [self.device.buffer(a) for a in (self.device.array(x), self.device.array(w), out)]
        call = self._gemm(problem, buffers) if isinstance(problem, Matmul) else self._conv(problem, buffers)

        def many(n: int) -> None:
            for _ in range(n):
                if status := call():
                    raise RuntimeError(f"CLBlast returned {status}")
            self.device.queue.finish()

        return Ready(many, lambda: out)

    def _gemm(self, t: Matmul, buffers: list[Any]) -> Callable[[], int]:
        size, real = self.c.c_size_t, self.c.c_float
        a, b, c, queue = self._handles(buffers)
        zero = size(0)
        arguments = (
            self.ROW_MAJOR, self.PLAIN, self.PLAIN, size(t.m), size(t.n), size(t.k), real(1), a, zero, size(t.k),
            b, zero, size(t.n), real(0), c, zero, size(t.n), queue, None,
        )  # fmt: skip
        return lambda: int(self.library.CLBlastSgemm(*arguments))

    def _conv(self, t: Conv, buffers: list[Any]) -> Callable[[], int]:
        size = self.c.c_size_t
        x, w, y, queue = self._handles(buffers)
        sizes = [t.c, t.h, t.h, t.r, t.r, t.pad, t.pad, t.stride, t.stride, 1, 1, t.o, 1]
        zero = size(0)
        arguments = (self.CORRELATION, *map(size, sizes), x, zero, w, zero, y, zero, queue, None)
        return lambda: int(self.library.CLBlastSconvgemm(*arguments))

    def _handles(self, buffers: list[Any]) -> tuple[Any, ...]:
        pointer = self.c.c_void_p
        self._kept = buffers  # CLBlast holds handles, not references
        return (*(pointer(b.int_ptr) for b in buffers), self.c.byref(pointer(self.device.queue.int_ptr)))


# name -> (how to make it, whether it packs weights before the clock runs, whether it needs this project's environment)
PEERS: Mapping[str, tuple[Callable[[], Competitor], bool, bool]] = {
    "numpy": (NumPy, False, False),
    "torch": (lambda: Torch("plain"), False, False),
    "torch_cl": (lambda: Torch("cl"), False, False),
    "torch_blocked": (lambda: Torch("blocked"), True, False),
    "torch_packed": (lambda: Torch("packed"), True, False),
    "torch_packed_cl": (lambda: Torch("packed_cl"), True, False),
    "torch_mkl": (lambda: Torch("mkl"), True, False),
    "ort": (lambda: OnnxRuntime(constant=True), True, False),
    "ort_input": (lambda: OnnxRuntime(constant=False), False, False),
    "tvm": (Tvm, False, False),
    "halide": (Halide, False, False),
    "clblast": (ClBlast, False, True),
}

_MATRICES_ONLY = {"numpy", "torch_mkl", "ort_input", "tvm"}
_IMAGES_ONLY = {"torch_cl", "torch_packed_cl"}


def does(name: str, problem: Problem) -> bool:
    """Whether it is worth asking: a process that always declines need not be started."""
    return name not in (_IMAGES_ONLY if isinstance(problem, Matmul) else _MATRICES_ONLY)


if __name__ == "__main__":
    serve(PEERS[sys.argv[1]][0])
