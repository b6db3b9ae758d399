"""ResNet-50 of ONNX Runtime and with its convolutions replaced: how far results are apart, and how long a run takes.

    python benchmarks/frameworks/resnet50_onnx.py [--batch 1] [--size 224] [--budget 10m] [--runs 20] [--folder DIR]
                                                  [--python PYTHON …] [-o FILE]

Weights are random. Without --budget the kernels are default schedules, or those on record in DIR/tuning_logs. Runs of
both models alternate, on as many threads. --python names interpreters that run the models, each with its onnxruntime
and NumPy; nothing else is needed there. Exit status 1 where a result is more than 1e-4 of the largest score off, or
where not all convolutions were replaced. Needs onnx and onnxruntime.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STAGES = ((3, 64, 256, 1), (4, 128, 512, 2), (6, 256, 1024, 2), (3, 512, 2048, 2))
"""Blocks, narrow channels, wide channels and the stride of the first block."""


TOLERANCE = 1e-4
NAMES = ("ONNX Runtime", "replaced")


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


def compare(folder, library, threads, runs):
    """How far scores of both models are apart, and the times of alternating runs; needs NumPy and onnxruntime alone."""
    import onnxruntime as ort

    made = []
    for name, own in (("resnet50", None), ("resnet50_tir", library)):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        if own:
            options.register_custom_ops_library(str((folder / own).resolve()))
        path = str(folder / f"{name}.onnx")
        made.append(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    rng, shape = np.random.default_rng(1), made[0].get_inputs()[0].shape
    times, errors = ([], []), []
    for run in range(runs + 1):
        image, scores = rng.standard_normal(shape).astype(np.float32), []
        for session, own in zip(made, times, strict=True):
            start = time.perf_counter()
            scores += session.run(None, {"image": image})
            own.append(time.perf_counter() - start)
        errors.append(float(np.abs(scores[0] - scores[1]).max() / np.abs(scores[0]).max()))
        if run == 0:
            times = ([], [])  # the first runs allocate
    ratios = np.array(times[0]) / np.array(times[1])
    return {
        "onnxruntime": ort.__version__, "numpy": np.__version__, "python": platform.python_version(),
        "threads": threads, "images": len(errors), "error": max(errors), "runs": runs,
        "least_ms": dict(zip(NAMES, (round(min(t) * 1e3, 2) for t in times), strict=True)),
        "median_ms": dict(zip(NAMES, (round(float(np.median(t)) * 1e3, 2) for t in times), strict=True)),
        "onnxruntime_over_replaced": round(float(np.median(ratios)), 3),
        "tensorir": [m for m in sys.modules if m.split(".")[0] == "tensorir"],
    }  # fmt: skip


def write(folder, given):
    """Both models, and what was replaced."""
    import onnx

    onnx.save(resnet50(given.batch, given.size), str(folder / "resnet50.onnx"))
    words = ["--tune", "--budget", given.budget] if given.budget else []
    command = [sys.executable, "-m", "tensorir", "onnx", "resnet50.onnx", "--replace", "-o", "resnet50_tir.onnx",
               "--untuned", "--json", *words]  # fmt: skip
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    about = json.loads(done.stdout)
    convolutions = [n for k in about["kernels"] for n in k["nodes"] if n.startswith("Conv")]
    left = [n.op_type for n in onnx.load(str(folder / "resnet50_tir.onnx")).graph.node if not n.domain]
    return about["library"], {
        "convolutions": len(convolutions), "kernels": len(about["kernels"]),
        "tuned": sum(k["tuned"] for k in about["kernels"]), "seconds": round(time.perf_counter() - began, 1),
        "nodes_left": left,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--budget", help="tune what is not on record")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", help="where models, logs and kernels are kept")
    parser.add_argument("--python", action="append", default=[], help="an interpreter to compare in")
    parser.add_argument("--compare", metavar="LIBRARY", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp())
    if given.compare:
        print(json.dumps(compare(folder, given.compare, given.threads, given.runs)))
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
    from versus.environment import environment

    about = environment()
    folder.mkdir(parents=True, exist_ok=True)
    library, written = write(folder, given)
    print(
        f"{written['convolutions']} convolutions replaced, {written['kernels']} kernels, in {written['seconds']:.0f} s"
    )
    rows = []
    for python in given.python or [sys.executable]:
        words = ["--folder", folder, "--compare", library, "--threads", given.threads, "--runs", given.runs]
        command = [python, str(Path(__file__).resolve()), *map(str, words)]
        own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or python == sys.executable}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
        rows.append(row := json.loads(done.stdout))
        print(f"onnxruntime {row['onnxruntime']}: {row['error']:.2g} of the largest score off, median ms of "
              f"{row['runs']} runs {row['median_ms']}, ratio {row['onnxruntime_over_replaced']:.3g}")  # fmt: skip
    if given.output:
        shape = {"batch": given.batch, "size": given.size}
        document = {"schema": 1, "environment": about, **shape, "written": written, "rows": rows}
        given.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    good = written["convolutions"] == 53 and all(r["error"] <= TOLERANCE and not r["tensorir"] for r in rows)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
