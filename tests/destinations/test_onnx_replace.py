"""tensorir onnx: a model whose nodes call kernels computes the same, and what it does not take is said."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import tensorir as tir  # noqa: E402
from tensorir.cli import common, main, verb_onnx  # noqa: E402
from tensorir.cli.choice import Chosen  # noqa: E402
from tensorir.export.shipped import build  # noqa: E402
from tensorir.ops.onnx_nodes import graph_of  # noqa: E402

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """``cli(*args)`` -> (exit code, stdout, stderr), in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args):
        code = main.run([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


def network(path, batch=2):
    """Convolutions of several sorts, products of matrices, and what is none of them."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 4, 1, 1), "w3": (8, 1, 3, 3), "w4": (8, 8, 3, 3),
              "m1": (6, 5), "half": (5, 5), "g": (4, 5), "gb": (4,)}  # fmt: skip
    weights = [onnx.numpy_helper.from_array(rng.integers(-2, 3, s).astype(np.float32), n) for n, s in shapes.items()]
    weights += [onnx.numpy_helper.from_array(np.array(v, np.int64), n) for n, v in
                {"to": [-1, 8, 6], "rows": [-1, 5]}.items()]  # fmt: skip
    nodes = [
        ("Conv", ["x", "w1", "b1"], "c1", {"pads": [1] * 4, "name": "first"}), ("Relu", ["c1"], "r1", {}),
        ("Conv", ["r1", "w2"], "c2", {"group": 2}), ("Conv", ["c2", "w2"], "c3", {"group": 2}),
        ("Add", ["c2", "c3"], "s1", {}), ("Relu", ["s1"], "r2", {}),
        ("Conv", ["r2", "w3"], "c4", {"group": 8, "pads": [1] * 4}),
        ("Conv", ["c4", "w4"], "c5", {"pads": [1, 0, 1, 2], "name": "uneven"}),
        ("Reshape", ["c5", "to"], "t", {}), ("MatMul", ["t", "m1"], "p", {}), ("Reshape", ["p", "rows"], "q", {}),
        ("Gemm", ["q", "half"], "h", {"alpha": 0.5, "name": "halved"}), ("Gemm", ["h", "g", "gb"], "y", {"transB": 1}),
    ]  # fmt: skip
    made = [helper.make_node(op, i, [o], **attrs) for op, i, o, attrs in nodes]
    x = helper.make_tensor_value_info("x", FLOAT, (batch, 3, 6, 6))
    y = helper.make_tensor_value_info("y", FLOAT, ("rows", 4))
    graph = helper.make_graph(made, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture(scope="module")
def replaced(tmp_path_factory):
    """The network above with everything replaced that can be: folder, and what the command said."""
    where = tmp_path_factory.mktemp("onnx")
    network(where / "net.onnx")
    said = []
    with pytest.MonkeyPatch.context() as m:
        m.chdir(where)
        m.setattr(verb_onnx, "put_json", said.append)
        args = ["onnx", "net.onnx", "--replace", "-o", "out.onnx", "--untuned", "--test", "--json", "--log", "none"]
        assert main.run(args) == 0
    return where, said[0]


def test_all_that_fits_is_replaced_and_computes_the_same(replaced):
    where, said = replaced
    assert 0 <= said["test"]["y"] < 1e-5
    taken = {k["workload"].split()[0]: [] for k in said["kernels"]}
    for k in said["kernels"]:
        taken[k["workload"].split()[0]] += k["nodes"]
    assert taken == {
        "conv2d": ["Conv first", "Conv c2", "Conv c3", "Conv c4", "Conv uneven"], "matmul": ["MatMul p", "Gemm y"]
    }  # fmt: skip
    assert said["left"] == [
        {
            "nodes": ["Gemm halved"],
            "left": "alpha is 0.5, beta 1: only 1 is known",
            "code": "onnx.attributes",
        }
    ]
    made = onnx.load(str(where / "out.onnx"))
    onnx.checker.check_model(made)
    own = [n for n in made.graph.node if n.domain == said["domain"] == "tensorir.out"]
    assert [n.op_type for n in own][:5] == [f"conv2d_{n}" for n in range(1, 6)]
    assert [n.op_type for n in made.graph.node if n.domain == ""] == ["Reshape", "Reshape", "Gemm"]
    assert list(own[0].input) == ["x", "w1", "b1"] and list(own[0].output) == ["r1"]
    assert list(own[2].input) == ["c2", "w2", "c2"] and list(own[2].output) == ["r2"], "the sum and its Relu are in it"
    assert own[0].name == "first"
    assert own[0].doc_string == said["kernels"][0]["workload"] and "act=relu" in own[0].doc_string
    assert {w.name for w in made.graph.initializer} >= {"w1", "b1", "w2", "m1", "g"}, "weights stay inputs"


def test_each_kernel_is_a_folder_and_all_of_them_a_library(replaced):
    where, said = replaced
    folder = where / said["folder"]
    about = json.loads((folder / "manifest.json").read_text())
    assert about["onnxruntime"] == {"library": "libout.so", "domain": "tensorir.out"}
    assert Path(said["library"]) == Path("out.kernels/libout.so") and (where / said["library"]).exists()
    assert {p.name for p in folder.iterdir()} == {*about["holds"], "manifest.json"}
    for kernel in said["kernels"]:
        assert json.loads((folder / kernel["folder"] / "manifest.json").read_text())["targets"] == ["c"]
    copy = shutil.copytree(folder, where / "elsewhere")
    (copy / "libout.so").unlink()
    made = build_there(copy)
    assert verb_onnx.compared(where / "net.onnx", where / "out.onnx", made) == said["test"]


def build_there(folder):
    done = subprocess.run([sys.executable, "build.py"], cwd=folder, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_a_wrong_kernel_is_noticed(replaced, monkeypatch):
    where, said = replaced
    sources = {}
    for name in json.loads((where / said["folder"] / "manifest.json").read_text())["library"]["sources"]:
        sources[Path(name).name] = (where / said["folder"] / name).read_bytes()
    head = b"\nstatic inline int wrong(const tir_call *c, void *const *b, const void *p) "
    body = b"{ const int code = conv2d_1_packed(c, b, p); *(float *)b[3] = 1e6f; return code; }\n"
    sources["conv2d_1.h"] += head + body
    sources["operators.c"] = sources["operators.c"].replace(b" conv2d_1_packed,", b" wrong,")
    (where / "libwrong.so").write_bytes(build.compiled(build.compiler(), sources))
    error = verb_onnx.compared(where / "net.onnx", where / "out.onnx", where / "libwrong.so")["y"]
    assert not error <= verb_onnx.TEST_TOLERANCE
    monkeypatch.setattr(verb_onnx, "compared", lambda *_: {"y": error})
    about = {"folder": ".", "onnxruntime": {"library": "x"}}
    assert verb_onnx._compare(where / "net.onnx", where / "out.onnx", about)[0] == common.WRONG_RESULT


def test_nothing_on_record_leaves_everything_and_says_how_to_tune(cli, tmp_path):
    network(tmp_path / "net.onnx")
    code, out, _ = cli("onnx", "net.onnx")
    assert code == 0 and out.startswith("net.onnx: 0 nodes have kernels\nleft 7: not on record [onnx.not-tuned]\n")
    assert "\n  tensorir tune conv2d 2x3x6x6 8x3x3x3 --pad 1 --bias --act relu --prepack\n" in out
    assert "conv2d 2x8x6x6 8x8x1x1 --groups 2 --prepack\n" in out and "matmul 96x4x5 --tb --bias --prepack\n" in out
    assert "never replaced: 2 Relu, 1 Add, 2 Reshape" in out and not (tmp_path / "out.kernels").exists()
    code, out, _ = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx", "--test")
    assert code == 0 and "y: 0 of its largest value off" in out and "register_custom_ops_library" not in out


def test_only_what_is_on_record_is_replaced(cli, tmp_path):
    """Also where the Relu behind it is part of no record: that stays."""
    network(tmp_path / "net.onnx")
    work = tir.ops.conv2d(n=2, c=3, h=6, w=6, k=8, r=3, s=3, pad=1, bias=True)
    outcome = work.tune(trials=1, log=str(tmp_path / "log"), budget="60s")
    assert outcome.status == "ok"
    code, out, err = cli("onnx", "net.onnx", "--replace", "-o", "new/out.onnx", "--log", "log", "--test", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert [(k["nodes"], k["tuned"]) for k in said["kernels"]] == [(["Conv first"], True)]
    assert said["kernels"][0]["time_s"] > 0 and len(said["missing"]) == 6 and said["test"]["y"] <= 1e-4
    made = onnx.load("new/out.onnx")
    assert [n.op_type for n in made.graph.node][:3] == ["conv2d_1", "Relu", "Conv"]
    assert made.graph.node[0].domain == "tensorir.out"


def test_tuning_what_is_missing_leaves_nothing(tmp_path):
    """Two convolutions are added: only the first one's kernel adds."""
    weights = [onnx.numpy_helper.from_array(np.zeros((8, 3, 1, 1), np.float32), n) for n in "ab"]
    nodes = [helper.make_node("Conv", ["x", n], [f"c{n}"]) for n in "ab"]
    nodes += [helper.make_node("Add", ["cb", "ca"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    ends = [helper.make_tensor_value_info(n, FLOAT, (1, c, 6, 6)) for n, c in (("x", 3), ("y", 8))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    made = graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    missing = verb_onnx.plan(made, lambda _: None).missing
    assert [("residual" in title, "relu" in title) for title in missing] == [(True, True), (False, False)]
    record = Chosen("cpu_tile_column", {}, tir.Target.parse("c"), SimpleNamespace(id="some"))
    found = verb_onnx.plan(made, lambda work: record if work.title in missing else None)
    assert not found.left and len(found.taken) == 2 and found.joined == {2, 3} and not found.missing


def test_without_a_compiler_the_library_is_made_later(cli, tmp_path, monkeypatch):
    network(tmp_path / "net.onnx")
    monkeypatch.setattr(build, "compiler", lambda: None)
    code, _, err = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx", "--untuned")
    assert code == 0 and "this machine has no C compiler" in err and not (tmp_path / "out.kernels/libout.so").exists()
    code, _, err = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx", "--untuned", "--test")
    assert code == 2 and "[export.library]" in err
    made = build_there(tmp_path / "out.kernels")
    assert verb_onnx.compared(tmp_path / "net.onnx", tmp_path / "out.onnx", made)["y"] < 1e-5


def test_a_model_that_cannot_be_run_is_no_bug(cli, tmp_path):
    network(tmp_path / "net.onnx")
    made = onnx.load(tmp_path / "net.onnx")
    made.graph.node.append(helper.make_node("Strange", ["y"], ["z"], domain="of.others"))
    made.graph.output.append(helper.make_tensor_value_info("z", FLOAT, None))
    made.opset_import.append(helper.make_opsetid("of.others", 1))
    onnx.save(made, str(tmp_path / "net.onnx"))
    code, _, err = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx", "--test")
    assert code == 2 and "[onnx.model] onnxruntime does not take net.onnx" in err and "Strange" in err


def of_one(path, *after, inputs=(), outputs=None):
    """A convolution that makes c, and the nodes after it."""
    w = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), *after]
    ends = [helper.make_tensor_value_info("x", FLOAT, (1, 3, 6, 6)), *inputs]
    outs = outputs or [helper.make_tensor_value_info("y", FLOAT, None)]
    made = helper.make_graph(nodes, "g", ends, outs, [w])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def number(name, value, dtype=np.float32):
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(value, dtype), name))


REPLACE = ("--replace", "-o", "out.onnx", "--untuned", "--test", "--log", "none")


def test_infinite_results_and_such_that_are_no_tensors_are_compared(cli, tmp_path):
    """NaN where both have it is no difference; where nothing is finite nothing was compared."""
    minus = helper.make_tensor_value_info("u", onnx.TensorProto.UINT32, (2,))
    outs = [helper.make_tensor_value_info("y", FLOAT, None), helper.make_tensor_sequence_value_info("s", FLOAT, None),
            helper.make_tensor_value_info("t", onnx.TensorProto.STRING, None),
            helper.make_tensor_value_info("u2", onnx.TensorProto.UINT32, None)]  # fmt: skip
    to_text = [number("half", 0.5), helper.make_node("Greater", ["c", "half"], ["g"]),
               helper.make_node("Cast", ["g"], ["t"], to=onnx.TensorProto.STRING)]  # fmt: skip
    nodes = [helper.make_node("Log", ["c"], ["y"]), helper.make_node("SequenceConstruct", ["c", "y"], ["s"]), *to_text,
             helper.make_node("Identity", ["u"], ["u2"])]  # fmt: skip
    of_one(tmp_path / "net.onnx", *nodes, inputs=[minus], outputs=outs)
    code, out, err = cli("onnx", "net.onnx", *REPLACE, "--json")
    assert code == 0 and not err, err
    found = json.loads(out)["test"]
    assert set(found) == {"y", "s", "t", "u2"} and 0 <= found["y"] < 1e-5 and 0 <= found["s"] < 1e-5
    of_one(tmp_path / "net.onnx", number("none", 0), helper.make_node("Div", ["c", "none"], ["y"]))
    code, _, err = cli("onnx", "net.onnx", *REPLACE)
    assert code == 2 and "[onnx.model] y of net.onnx has no finite values" in err


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ([1.0, np.nan, np.inf, 2], [1.0, np.nan, np.inf, 2], 0), ([1.0, 2.0], [1.0, 2.5], 0.25),
        ([1.0, np.nan], [1.0, 2.0], np.inf), ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([1.0, np.inf], [1.0, -np.inf], np.inf), ([1.0, 2.0], [1.0], np.inf),
        ([1, 2], [1.0, 2.0], np.inf), (["a", "b"], ["a", "b"], 0),
        (["a", "b"], ["a", "c"], np.inf), ([True, False], [True, True], 1), ([], [], 0), ([0.0, 0.0], [0.0, 0.5], 0.5),
    ],
)  # fmt: skip
def test_how_far_results_are_apart(a, b, apart):
    a, b = np.array(a), np.array(b)
    assert verb_onnx.apart(a, b) == apart
    assert verb_onnx.apart([a, a], [a, b]) == apart and verb_onnx.apart([{"k": a}], [{"k": b}]) == apart
    assert verb_onnx.apart([a], [a, a]) == np.inf and verb_onnx.apart(None, a) == np.inf
    assert verb_onnx.apart({"k": a}, {"l": a}) == np.inf and verb_onnx.apart(None, None) == 0


def test_what_does_not_run_is_no_bug(cli, tmp_path):
    shape = helper.make_tensor_value_info("to", onnx.TensorProto.INT64, (2,))
    of_one(tmp_path / "net.onnx", helper.make_node("Reshape", ["c", "to"], ["y"]), inputs=[shape])
    code, _, err = cli("onnx", "net.onnx", *REPLACE)
    assert code == 2 and "[onnx.model] net.onnx does not run on random inputs" in err and "Reshape" in err
    # a shape that is not what the model says of it: the operator refuses what ONNX Runtime would take
    network(tmp_path / "net.onnx", "batch")
    made = onnx.load(tmp_path / "net.onnx")
    made.graph.node.insert(0, helper.make_node("Concat", ["x", "x"], ["xx"], axis=0))
    made.graph.node[1].input[0] = "xx"
    made.graph.value_info.append(helper.make_tensor_value_info("xx", FLOAT, (2, 3, 6, 6)))
    onnx.save(made, str(tmp_path / "net.onnx"))
    arguments = [*REPLACE, "--dim", "batch=2"]
    code, _, err = cli("onnx", "net.onnx", *[a.replace("out.onnx", "other.onnx") for a in arguments])
    assert code == 2 and "expected shape 2x3x6x6, got 4x3x6x6" in err, err


def test_operators_of_an_earlier_library_stay_of_it(cli, tmp_path):
    """A model that calls kernels has others replaced: also where its name is the same, no operator means two."""
    network(tmp_path / "net.onnx")
    assert cli("onnx", "net.onnx", "--replace", "-o", "out.onnx", "--untuned", "--log", "none")[0] == 0
    more = onnx.load(tmp_path / "out.onnx")
    more.graph.node.append(helper.make_node("MatMul", ["y", "square"], ["z"]))
    more.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "square"))
    more.graph.output.append(helper.make_tensor_value_info("z", FLOAT, ("rows", 4)))
    more.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 96
    onnx.save(more, str(tmp_path / "more.onnx"))
    code, out, err = cli("onnx", "more.onnx", "--replace", "-o", "new/out.onnx", "--untuned", "--log", "none", "--json")
    assert code == 0, err
    said = json.loads(out)
    assert said["domain"] == "tensorir.out_2" and [k["nodes"] for k in said["kernels"]] == [["MatMul z"]]
    options = ort.SessionOptions()
    for library in ("out.kernels/libout.so", said["library"]):
        options.register_custom_ops_library(str((tmp_path / library).resolve()))
    run = ort.InferenceSession("new/out.onnx", options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 6, 6)).astype(np.float32)
    y, z = run.run(["y", "z"], {"x": x})
    assert np.array_equal(y, z) and y.any()


def test_symbolic_extents_are_given_by_name(cli, tmp_path):
    network(tmp_path / "net.onnx", "batch")
    code, out, _ = cli("onnx", "net.onnx")
    assert code == 0 and "left 1: x is ?x3x6x6: extents that are not known (say them with --dim NAME=SIZE) [" in out
    code, out, _ = cli("onnx", "net.onnx", "--dim", "batch=3")
    assert "tensorir tune conv2d 3x3x6x6 8x3x3x3 --pad 1 --bias --act relu --prepack" in out
    code, _, err = cli("onnx", "net.onnx", "--dim", "bach=3")
    assert code == 2 and "there is no symbolic extent 'bach'" in err and "batch?" in err
    for wrong in ("batch", "batch=", "batch=0", "batch=x"):
        assert cli("onnx", "net.onnx", "--dim", wrong)[0] == 2


def test_an_earlier_result_is_replaced_and_anything_else_is_kept(cli, tmp_path):
    network(tmp_path / "net.onnx")
    (tmp_path / "out.kernels").mkdir()
    (tmp_path / "out.kernels" / "mine").write_text("x")
    code, _, err = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx")
    assert code == 2 and "[onnx.exists]" in err and not (tmp_path / "out.onnx").exists()
    shutil.rmtree(tmp_path / "out.kernels")
    for there in (b"mine", (tmp_path / "net.onnx").read_bytes()):
        (tmp_path / "out.onnx").write_bytes(there)
        code, _, err = cli("onnx", "net.onnx", "--replace", "-o", "out.onnx")
        assert code == 2 and "out.onnx is there and tensorir onnx did not write it" in err
        assert (tmp_path / "out.onnx").read_bytes() == there and not (tmp_path / "out.kernels").exists()
    (tmp_path / "out.onnx").unlink()
    (tmp_path / "folder.onnx").mkdir()
    assert "[onnx.exists]" in cli("onnx", "net.onnx", "--replace", "-o", "folder.onnx")[2]
    for _ in range(2):
        assert cli("onnx", "net.onnx", "--replace", "-o", "out.onnx")[0] == 0
    (tmp_path / "out.kernels" / "mine").write_text("x")
    assert cli("onnx", "net.onnx", "--replace", "-o", "out.onnx")[0] == 2
    assert (tmp_path / "out.kernels" / "mine").exists() and not list(tmp_path.glob(".new-*"))


def test_wrong_calls_say_what_is_meant(cli, tmp_path, monkeypatch):
    network(tmp_path / "net.onnx")
    (tmp_path / "text.onnx").write_text("nothing of the sort\n")
    (tmp_path / "empty.onnx").write_bytes(b"")
    whole = (tmp_path / "net.onnx").read_bytes()
    (tmp_path / "short.onnx").write_bytes(whole[:-40])
    (tmp_path / "torn.onnx").write_bytes(whole.replace(b"w3", b"w\x7f", 1))
    for args, words in {
        ("net.onnx", "--replace"): "needs -o OUT",
        ("net.onnx", "-o", "out.onnx"): "is for --replace",
        ("net.onnx", "--test"): "compares what --replace writes",
        ("net.onnx", "--budget", "5s"): "are for --tune",
        ("net.onnx", "--replace", "-o", "net.onnx"): "is the model itself",
        ("net.onnx", "--replace", "-o", "."): "-o . names no file",
        ("net.onnx", "--replace", "-o", "/"): "-o / names no file",
        ("net.onnx", "--replace", "-o", "out.kernels"): "out.kernels is the name of the folder of the kernels",
        ("text.onnx",): "[onnx.model] text.onnx is no ONNX model",
        ("empty.onnx",): "[onnx.model] empty.onnx is no ONNX model",
        ("short.onnx",): "[onnx.model] short.onnx is no ONNX model, or is damaged",
        ("torn.onnx",): "which nothing before it makes",
        ("none.onnx",): "[onnx.model] none.onnx cannot be read",
        (".",): "[onnx.model] . cannot be read",
    }.items():
        code, out, err = cli("onnx", *args)
        assert code == 2 and words in err and not out, (args, err)
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = cli("onnx", "net.onnx")
    assert code == 2 and "[onnx.missing]" in err and 'pip install "tensorir[onnx]"' in err
