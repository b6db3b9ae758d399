"""ResNet-50 of ONNX Runtime and with its convolutions replaced: how far results are apart, and how long a run takes.

    python benchmarks/frameworks/resnet50_onnx.py [--batch 1] [--size 224] [--budget 10m] [--runs 20] [--folder DIR]

Weights are random. Without --budget the kernels are default schedules, or those on record in DIR/tuning_logs. Runs of
both models alternate, on the same threads; needs onnx and onnxruntime.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STAGES = ((3, 64, 256, 1), (4, 128, 512, 2), (6, 256, 1024, 2), (3, 512, 2048, 2))
"""Blocks, narrow channels, wide channels and the stride of the first block."""


class Network:
    """Nodes and weights, one after another."""

    def __init__(self, seed=0):
        self.nodes, self.weights, self.rng = [], [], np.random.default_rng(seed)

    def weight(self, name, shape, spread):
        import onnx

        array = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        self.weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, op, inputs, **attributes):
        import onnx

        out = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [out], name=out, **attributes))
        return out

    def conv(self, x, c, k, taps, stride=1):
        name = f"conv_{len(self.nodes)}"
        w = self.weight(f"{name}_w", (k, c, taps, taps), (2 / (c * taps * taps)) ** 0.5)
        b = self.weight(f"{name}_b", (k,), 0.1)
        pad = taps // 2
        return self.node("Conv", [x, w, b], kernel_shape=[taps, taps], strides=[stride] * 2, pads=[pad] * 4)


def resnet50(batch=1, size=224, stages=STAGES, classes=1000):
    """The network with batch normalization folded into convolutions, as exporters write it for inference."""
    import onnx

    net = Network()
    x = net.node("Relu", [net.conv("image", 3, 64, 7, 2)])
    x = net.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    c = 64
    for blocks, narrow, wide, first in stages:
        for n in range(blocks):
            stride = first if n == 0 else 1
            y = net.node("Relu", [net.conv(x, c, narrow, 1)])
            y = net.node("Relu", [net.conv(y, narrow, narrow, 3, stride)])
            y = net.conv(y, narrow, wide, 1)
            x = net.conv(x, c, wide, 1, stride) if n == 0 else x
            x = net.node("Relu", [net.node("Add", [y, x])])
            c = wide
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    weights = [net.weight("fc_w", (classes, c), c**-0.5), net.weight("fc_b", (classes,), 0.1)]
    net.nodes.append(onnx.helper.make_node("Gemm", [x, *weights], ["scores"], name="fc", transB=1))
    ends = [("image", (batch, 3, size, size)), ("scores", (batch, classes))]
    image, scores = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in ends)
    graph = onnx.helper.make_graph(net.nodes, "resnet50", [image], [scores], net.weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def sessions(plain, replaced, library, threads):
    import onnxruntime as ort

    made = []
    for path, own in ((plain, None), (replaced, library)):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        if own:
            options.register_custom_ops_library(str(own))
        made.append(ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--budget", help="tune what is not on record")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", help="where models, logs and kernels are kept")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    import onnx

    onnx.save(resnet50(given.batch, given.size), str(folder / "resnet50.onnx"))
    words = ["--tune", "--budget", given.budget] if given.budget else []
    command = [sys.executable, "-m", "tensorir", "onnx", "resnet50.onnx", "--replace", "-o", "resnet50_tir.onnx",
               "--untuned", "--test", "--json", *words]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    about = json.loads(done.stdout)
    convolutions = [n for k in about["kernels"] for n in k["nodes"] if n.startswith("Conv")]
    took, error = time.perf_counter() - began, about["test"]["scores"]
    print(f"{len(convolutions)} convolutions replaced, {len(about['kernels'])} kernels, written in {took:.0f} s")
    print(f"largest difference: {error:.2g} of the largest score")
    both = sessions(folder / "resnet50.onnx", folder / "resnet50_tir.onnx", folder / about["library"], given.threads)
    image = np.random.default_rng(1).standard_normal((given.batch, 3, given.size, given.size)).astype(np.float32)
    times = [[], []]
    for _ in range(given.runs):
        for session, own in zip(both, times, strict=True):
            start = time.perf_counter()
            session.run(None, {"image": image})
            own.append(time.perf_counter() - start)
    for name, own in zip(("ONNX Runtime", "replaced"), times, strict=True):
        print(f"{name}: median {np.median(own) * 1e3:.1f} ms, least {min(own) * 1e3:.1f} ms of {len(own)} runs")


if __name__ == "__main__":
    main()
