"""What travels as JSON arrives as it was: every field of every dataclass that does, those of tomorrow included."""

import ast
import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.api.expected import Output
from tensorir.api.workload import Origin
from tensorir.codegen.codec import CodecError, decode, encode
from tensorir.codegen.source import Assumed, GatherRange, KernelLaunch, Param, Source, TensorMap
from tensorir.errors import Problem
from tensorir.export.folder import export
from tensorir.target import Target
from tensorir.tune.inputs import Argument
from tensorir.tune.paired import Standing

PACKAGE = Path(tir.__file__).parent
TRAVELS = (
    Param, TensorMap, KernelLaunch, GatherRange, Assumed, Source,
    Argument, Output, Origin, Problem, Standing, Target,
)  # fmt: skip
"""The dataclasses that are read back from JSON in another process, or from a file."""


class Sort(enum.Enum):
    ONE = "one"
    TWO = "two"


@dataclasses.dataclass(frozen=True)
class Everything:
    """A field of each kind that annotations may have."""

    word: str
    count: int
    share: float
    switch: bool
    raw: bytes
    sort: Sort
    three: tuple[int, int, int]
    many: tuple[str, ...]
    inner: Param
    inners: tuple[Param, ...]
    maybe: int | None
    perhaps: typing.Optional[bytes]  # noqa: UP045
    table: Mapping[str, typing.Any]
    numbers: dict[str, float]
    items: list[int]
    mixed: int | str = 0


def samples(hint, depth=0):
    """Different values of an annotated type, two at least."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return [None]
    if origin in (types.UnionType, typing.Union):
        return [v for a in args for v in samples(a, depth)]
    plain = {str: ["", "a b", "ä\n"], int: [0, 1, -7, 2**62], bool: [False, True], float: [0.0, 1.5, -1e-300]}
    plain |= {bytes: [b"", b"\0\xff"], typing.Any: ["x", [1, None]]}
    if hint in plain:
        return plain[hint]
    if origin is tuple and args[-1] is Ellipsis:
        return [(), (samples(args[0], depth + 1)[0],), tuple(samples(args[0], depth + 1)[:2])]
    if origin is tuple:
        return [tuple(samples(a)[n % len(samples(a))] for a in args) for n in (0, 1)]
    if origin is list:
        return [[], samples(args[0])[:2]]
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return [{}, {"k": samples(args[1])[1]}]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)
    return variants(hint) if depth < 2 else variants(hint)[:2]


def variants(kind):
    """An instance, and for each field instances that differ from it in that one alone."""
    hints = typing.get_type_hints(kind)
    base = kind(**{f.name: samples(hints[f.name], 1)[0] for f in dataclasses.fields(kind)})
    return [base, *(v for f in dataclasses.fields(kind) for v in changed(base, f, hints[f.name]))]


def changed(base, f, hint):
    return [dataclasses.replace(base, **{f.name: v}) for v in samples(hint, 1) if v != getattr(base, f.name)]


@pytest.mark.parametrize("kind", [Everything, *(k for k in TRAVELS if k is not Target)], ids=lambda k: k.__name__)
def test_every_field_survives(kind):
    made = variants(kind)
    told = [json.dumps(encode(v), sort_keys=True) for v in made]
    assert [decode(kind, json.loads(t)) for t in told] == made
    names = {f.name for f in dataclasses.fields(kind)}
    assert {
        f.name for f in dataclasses.fields(kind) if any(getattr(v, f.name) != getattr(made[0], f.name) for v in made)
    } == names
    assert all(encode(v).keys() == names for v in made)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Target) if f.compare])
def test_every_field_of_a_target_is_in_its_text(name):
    base = Target.parse("cuda -arch=sm_90a")
    texts = {"language": "hip", "kind": "opencl", "arch": "cuda -arch=sm_80", "device": "cuda:1"}
    other = {field: Target.parse(text) for field, text in texts.items()}
    value = getattr(base, name)
    if name not in other:
        new = (1, 2, 3) if isinstance(value, tuple) else (not value) if isinstance(value, bool) else value + 1
        other[name] = dataclasses.replace(base, **{name: new})
    assert getattr(other[name], name) != value
    assert Target.parse(other[name].text) == other[name]


def test_what_was_written_for_another_version_of_a_class_is_refused():
    """Kept entries of before a field existed count as absent: they would be read with a default that may be wrong."""
    said = encode(variants(Source)[0])
    for name in said:
        with pytest.raises(CodecError, match=f"Source has the fields .*{name}"):
            decode(Source, {k: v for k, v in said.items() if k != name})
    for wrong in (
        {**said, "later": 1},
        {**said, "params": None},
        {**said, "text": 3},
        {**said, "kernels": [[]]},
        [],
        None,
        "x",
    ):
        with pytest.raises(CodecError):
            decode(Source, wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [("word", 1), ("count", True), ("count", 1.0), ("switch", 1), ("share", "1"), ("raw", "?"), ("sort", "three"),
     ("three", [1, 2]), ("many", "ab"), ("many", [1]), ("inner", {}), ("maybe", "1"), ("numbers", {"a": None}),
     ("numbers", []), ("mixed", None)],
)  # fmt: skip
def test_values_of_another_type_are_refused(field, value):
    with pytest.raises(CodecError, match=f"Everything.{field}"):
        decode(Everything, {**encode(variants(Everything)[0]), field: value})


def test_what_has_no_form_as_json_is_refused():
    with pytest.raises(CodecError, match="object has no form"):
        encode(Origin("ops", "x", {"a": object()}))


def test_a_source_of_tf32_products_keeps_what_its_results_are_compared_by():
    work = tir.ops.matmul(m=64, n=64, k=64, precision="tf32")
    source = work.schedule(target="cuda -arch=sm_80").emitted()
    assert source.instructions
    assert decode(Source, json.loads(json.dumps(encode(source)))) == source


def test_dataclasses_are_not_put_into_json_or_taken_from_it_by_hand():
    """``dataclasses.asdict`` has no way back: what uses it is written for people, or stays in the process."""
    known = {"cli/verb_doctor.py", "cli/emulated.py", "tune/paired.py", "runtime/cuda_device.py"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(n, ast.Name) and n.id == "asdict" for n in ast.walk(tree)):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found <= known


ANOTHER = {(Param, "dtype"): "int32", (Param, "role"): "output", (Param, "data"): b"\0\1\2\4"}
LEFT_OUT = {(Param, "data"), (Source, "text"), (Source, "instructions"), (Source, "language")}
"""Files of the folder, and what chooses the loader; ``instructions`` decide a tolerance, which is there."""


def neighbour(kind, name, value):
    """Another value of a field that a manifest can be written with."""
    if (kind, name) in ANOTHER:
        return ANOTHER[kind, name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] + 1) if value and isinstance(value[-1], int) else ()
    return value + 1 if isinstance(value, int) else f"{value}2"


def test_every_field_of_a_program_is_in_the_manifest(tmp_path):
    A = tir.placeholder((4,), name="A")
    C = tir.compute((4,), lambda i: A[i] + 1, name="C")
    tile = TensorMap("m", "A", "float32", (4,), (2,), 32, (1,), (0, 1), (2, 3))
    launch = KernelLaunch("k", ("m",), (1, 2, 3), (4, 5, 6), 7, False, (tile,), 2)
    given = Param("A", "float32", (4,), "constant", 16, b"\0\1\2\3" * 4)
    base = Source(
        "s", "cuda", "text", (given,), (launch,), (GatherRange("A", 9, "B"),), (Assumed("A", 8, 1, 5),), ("x",)
    )

    def manifest(source):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = json.loads((export(source, folder, ["source"], outputs=(C,)) / "manifest.json").read_text())
        return {k: v for k, v in made.items() if k not in ("files", "selftest")}

    first = manifest(base)
    parts = {Param: (given, lambda v: {"params": (v,)}), KernelLaunch: (launch, lambda v: {"kernels": (v,)}),
             TensorMap: (tile, lambda v: {"kernels": (dataclasses.replace(launch, maps=(v,)),)}),
             GatherRange: (base.gathers[0], lambda v: {"gathers": (v,)}),
             Assumed: (base.assumed[0], lambda v: {"assumed": (v,)}),
             Source: (base, lambda v: {f.name: getattr(v, f.name) for f in dataclasses.fields(v)})}  # fmt: skip
    lost = set()
    for kind, (value, put) in parts.items():
        for f in dataclasses.fields(kind):
            other = dataclasses.replace(value, **{f.name: neighbour(kind, f.name, getattr(value, f.name))})
            assert other != value
            if (kind, f.name) not in LEFT_OUT and manifest(dataclasses.replace(base, **put(other))) == first:
                lost.add((kind.__name__, f.name))
    assert not lost
