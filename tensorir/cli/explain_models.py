"""Error codes of models of other frameworks, explained (see explain_data)."""

from __future__ import annotations

from tensorir.cli.explain_entry import Entry

MODELS: dict[str, Entry] = {
    "onnx.attributes": Entry(
        "A node of an ONNX model is left: no workload has its attributes. Convolutions have one stride, one dilation "
        "and one number of pads for all sides, products no factors.",
        "# a Conv with strides=[1, 2], or a Gemm with alpha=0.5",
        "# strides=[2, 2]; a Pad node before a Conv whose pads differ",
    ),
    "onnx.dtype": Entry(
        "A node of an ONNX model is left: its tensors are not of float32, float64 or float16. Or --test has no random "
        "values of the type of an input.",
        "# a MatMul of int32",
        "# a MatMul of float32",
    ),
    "onnx.exists": Entry(
        "The model that --replace is to write, or the folder OUT.kernels next to it, is there, and no earlier run of "
        "tensorir onnx wrote it. Nothing was changed.",
        "# tensorir onnx a.onnx --replace -o b.onnx, where b.onnx is of somebody else",
        "# tensorir onnx a.onnx --replace -o a_tir.onnx",
    ),
    "onnx.missing": Entry(
        "Reading an ONNX model needs the package onnx, --test onnxruntime as well.",
        "# the base install: tensorir onnx model.onnx",
        '# pip install "tensorir[onnx]"',
    ),
    "onnx.model": Entry(
        "The file is no ONNX model, or it is damaged: it cannot be read, has no nodes, or one reads "
        "what nothing before it makes. Or --test: onnxruntime does not take the model.",
        "# a download that ended early",
        "# python -c \"import onnx; onnx.checker.check_model('model.onnx')\" says nothing",
    ),
    "onnx.not-tuned": Entry(
        "A node of an ONNX model is left: no kernel of its workload is on record for a processor.",
        "# tensorir onnx model.onnx --replace -o out.onnx, before anything was tuned",
        "# the same with --tune --budget 10m, or with --untuned for default schedules",
    ),
    "onnx.shape": Entry(
        "A node of an ONNX model is left: its shapes are not known, or no workload has them. Kernels have fixed "
        "shapes; convolutions have two dimensions, products are of matrices.",
        "# tensorir onnx model.onnx, where an input is (batch, 3, 224, 224)",
        "# tensorir onnx model.onnx --dim batch=1",
    ),
}
