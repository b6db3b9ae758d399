"""What travels as JSON arrives as it was: every field of every dataclass that does, those of tomorrow included."""

import ast
import dataclasses
import enum
import importlib
import json
import types
import typing
from collections.abc import Mapping

import pytest
from parsed import FILES, PACKAGE, nodes

import tensorir as tir
from tensorir.api.shape_outcome import Portfolio, Served, SetOutcome
from tensorir.api.workload import Origin
from tensorir.automatic.counts import Counts
from tensorir.automatic.fusions import Fusion
from tensorir.cli.choice import Chosen
from tensorir.codec import UNKNOWN_FIELDS, CodecError, checked, decode, encode, travelling, travels
from tensorir.codegen.source import (
    Assumed,
    DimRange,
    GatherRange,
    KernelLaunch,
    Param,
    SegmentRange,
    Source,
    TensorMap,
    UniquePlaces,
)
from tensorir.export.folder import export
from tensorir.runtime.machine import ProcessorLoad
from tensorir.target import Target
from tensorir.tune.dispatch import Dispatch, DispatchKernel, Leaf
from tensorir.tune.outcome import MachineReport, Timed, TuneOutcome
from tensorir.tune.ratio import Ratio, Span
from tensorir.tune.record import RunIdentity


def classes_where(test, decorator):
    """The classes of the package with a decorator whose definition passes a test: file and name. Files without the
    word are not parsed: these lists are made while tests are collected, in each process.
    """
    return {
        (file.relative_to(PACKAGE).as_posix(), node.name)
        for file in FILES.values()
        if f"@{decorator}" in file.read_text(encoding="utf-8")
        for node in nodes(file)
        if isinstance(node, ast.ClassDef) and decorated(node, decorator) and test(node)
    }


def decorated(node, name):
    return any(name in (getattr(d, "id", ""), getattr(getattr(d, "func", d), "id", "")) for d in node.decorator_list)


def registered():
    """The classes of the package that are declared with ``@travels``, each from its file."""
    found = classes_where(lambda node: True, "travels")
    return [getattr(importlib.import_module(module_of(file)), name) for file, name in sorted(found)]


def unchecked():
    """Those whose annotations say all: fields with checks of their own take no drawn values."""
    return [kind for kind in registered() if not any("check" in f.metadata for f in dataclasses.fields(kind))]


def module_of(file):
    return f"tensorir.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


class Sort(enum.Enum):
    ONE = "one"
    TWO = "two"


@travels
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
    plain |= {bytes: [b"", b"\0\xff"], typing.Any: ["x", [1, None]], object: ["x", [1, None]]}
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


@travels(sparse=True)
@dataclasses.dataclass(frozen=True)
class Sparse:
    """Fields that are None are left out."""

    count: int
    inner: Param | None = None
    maybe: float | None = None


@pytest.mark.parametrize("kind", [Everything, Sparse, *unchecked()], ids=lambda k: k.__name__)
def test_every_field_survives(kind):
    made = variants(kind)
    told = [json.dumps(encode(v), sort_keys=True) for v in made]
    assert [decode(kind, json.loads(t)) for t in told] == made
    names = {f.name for f in dataclasses.fields(kind)}
    assert {
        f.name for f in dataclasses.fields(kind) if any(getattr(v, f.name) != getattr(made[0], f.name) for v in made)
    } == names
    assert set().union(*(encode(v) for v in made)) == names


def test_what_is_not_declared_to_travel_is_refused():
    """Whoever writes another dataclass hears of it at the first try, and its fields are tested from then on."""

    @dataclasses.dataclass(frozen=True)
    class New:
        count: int

    for attempt in (
        lambda: encode(New(1)),
        lambda: decode(New, {"count": 1}),
        lambda: encode(Origin("", "", {"a": New(1)})),
    ):
        with pytest.raises(CodecError, match="New has no form as JSON: it is not declared with @travels"):
            attempt()
    assert encode(travels(New)(1)) == {"count": 1}
    with pytest.raises(TypeError, match="no dataclass"):
        travels(Sort)


def test_all_that_are_declared_to_travel_are_tested():
    """No class registers in another way than by the decorator that ``registered`` finds."""
    ours = {k for k in travelling() if k.__module__.startswith("tensorir.")}
    assert ours == set(registered()) and len(ours) > 12


def test_sparse_classes_leave_out_what_is_none():
    assert encode(Sparse(1)) == {"count": 1} and decode(Sparse, {"count": 1}) == Sparse(1)
    for wrong in ({}, {"count": 1, "later": 2}, {"maybe": 1.0}):
        with pytest.raises(CodecError):
            decode(Sparse, wrong)


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


@travels(sparse=True)
@dataclasses.dataclass(frozen=True)
class Line:
    """Plain data with checks, and what else was in it."""

    count: int = dataclasses.field(metadata=checked(lambda v: v == 1))
    word: str | None = dataclasses.field(default=None, metadata=checked(lambda v: isinstance(v, str)))
    unknown: dict = dataclasses.field(default_factory=dict, metadata=UNKNOWN_FIELDS)


def test_checked_fields_are_taken_as_they_are_and_unknown_ones_carried_along():
    for data in ({"count": 1}, {"count": 1, "word": "x", "later": [1, {}], "unknown": 3}):
        assert encode(decode(Line, data)) == data
    for data, field in (({"count": 2}, "count"), ({"count": 1, "word": None}, "word"), ({}, ""), ([], "")):
        with pytest.raises(CodecError) as refused:
            decode(Line, data)
        assert refused.value.field == field


def test_what_has_no_form_as_json_is_refused():
    with pytest.raises(CodecError, match="object has no form"):
        encode(Origin("ops", "x", {"a": object()}))


def test_a_source_of_tf32_products_keeps_what_its_results_are_compared_by():
    work = tir.ops.matmul(m=64, n=64, k=64, precision="tf32")
    source = work.schedule(target="cuda -arch=sm_80").emitted()
    assert source.instructions
    assert decode(Source, json.loads(json.dumps(encode(source)))) == source


def test_dataclasses_are_not_put_into_json_or_taken_from_it_by_hand():
    """``dataclasses.asdict`` has no way back: what uses it stays in the process."""
    used = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES.values()
        if any(isinstance(n, ast.Name) and n.id == "asdict" for n in nodes(file))
    }
    assert used == {"runtime/cuda_device.py"}


# --- documents for people and records, which have words of their own for some fields

NAMED = ("json", "fields", "to_json", "document")
COUNTS = Counts(1, 2, 3.0, 4.0, 5)
SPAN = Span(1.0, 0.5, 2.0)
LOAD = ProcessorLoad(8.0, 4.0, 2.0, 2, 1.5)
RECORD = RunIdentity("w", "c", {"name": "n", "driver": "d"}, {}).record("trial", "t", {}, {"status": "crashed"})
TIMED = Timed("id", "t", {"a": 1}, "ok", 1.0, 0.5, 2.0, 3.0, True, False, RECORD, SPAN)
ME = RunIdentity("w", "c", {"name": "n"}, {})
PORTFOLIO = Portfolio(
    Dispatch((DispatchKernel("t", {"a": 1}),), ({"m": 1},), (0,), Leaf(0)), 0.05, True,
    (Served("w", 1.0, 0, 1.0, 1.0, 0.0, 0.0, True),), {},
)  # fmt: skip
DOCUMENTS = {
    ProcessorLoad: (LOAD, ()),
    Ratio: (Ratio(1.0, 0.5, 2.0, "doubt"), ()),
    MachineReport: (MachineReport(LOAD, LOAD, (1.0, 2.0), ({"pid": 1, "workload": "w", "seconds": 1.0},)), ()),
    Timed: (TIMED, ("status", "confirmed", "record", "taken")),  # ``default`` has the status; the log has the record
    Chosen: (Chosen("t", {"a": 1}, Target.parse("opencl"), RECORD), ("target",)),
    Portfolio: (PORTFOLIO, ("records",)),
    Fusion: (
        Fusion("vertical", "a", "b", {"inline": 1.0}, {}, COUNTS, COUNTS, Ratio(1.0, 0.5, 2.0)),
        ("refused", "_made"),
    ),  # what a legal one was refused for before says nothing
    SetOutcome: (SetOutcome((), "budget", 1.0, PORTFOLIO), ()),
    TuneOutcome: (
        TuneOutcome("ok", "budget", ME, 1, 2, {"ok": 1}, {"name": "s"}, {"legal": 1}, TIMED,
                    {"name": "p", "time_s": 1.0}, TIMED, (TIMED,), (), (), ({"reason": "r"},), "log", 1.0),
        ("finalists", "records", "error"),
    ),
}  # fmt: skip
"""For each class that writes itself in words of its own: an instance, and the fields that its document leaves out."""


def test_every_field_of_a_document_is_in_it_or_known_to_be_left_out():
    lost = set()
    for kind, (base, left_out) in DOCUMENTS.items():
        write = next(getattr(kind, name) for name in NAMED if hasattr(kind, name))
        for f in dataclasses.fields(kind):
            if (kind, f.name) == (SetOutcome, "results"):
                continue  # which are documents of their own
            other = dataclasses.replace(base, **{f.name: different(getattr(base, f.name))})
            if (write(other) == write(base)) != (f.name in left_out):
                lost.add((kind.__name__, f.name))
    assert not lost


OTHERS = {
    Target: Target.parse("cuda"),
    MachineReport: MachineReport(LOAD),
    Dispatch: Dispatch((DispatchKernel("u", {"a": 1}),), ({"m": 1},), (0,), Leaf(0)),
}


def different(value):
    """Another value of the same type."""
    if value is None:
        return "x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | str):
        return value + ("2" if isinstance(value, str) else 1)
    if type(value) in OTHERS:
        return OTHERS[type(value)]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if isinstance(getattr(value, f.name), str | float)]
        return dataclasses.replace(value, **{n: different(getattr(value, n)) for n in names})
    if isinstance(value, Mapping):
        return {k: different(v) for k, v in value.items()} or {"k": 1}
    return tuple(map(different, value)) or (1,)


def test_every_class_that_writes_itself_is_a_document_here():
    def writes(node):
        return any(isinstance(n, ast.FunctionDef) and n.name in NAMED and len(n.args.args) == 1 for n in node.body)

    found = classes_where(writes, "dataclass")
    assert {name for _, name in found} == {k.__name__ for k in DOCUMENTS}


def test_what_a_document_says_is_read_again():
    for kind, read in ((Ratio, Ratio.given), (ProcessorLoad, ProcessorLoad.of)):
        base, _ = DOCUMENTS[kind]
        write = next(getattr(kind, name) for name in NAMED if hasattr(kind, name))
        for f in dataclasses.fields(kind):
            other = dataclasses.replace(base, **{f.name: different(getattr(base, f.name))})
            assert read(write(other)) == other


OPEN = Param("N", "float32", ("n",), "input")
ANOTHER = {
    (Param, "dtype"): "int32", (Param, "role"): "output", (Param, "data"): b"\0\1\2\4",
    (GatherRange, "part"): ((0, 2, 1),), (Source, "params"): (OPEN,), (Source, "dims"): (DimRange("n", 1, 5),),
}  # fmt: skip
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
        "s", "cuda", "text", (given, OPEN), (launch,), (GatherRange("A", 9, "B"),), (Assumed("A", 8, 1, 5),), ("x",),
        (UniquePlaces("B", (4,), (("A", (0,)),), (4,)),), segments=(SegmentRange("A", 0, 9, "k"),),
        dims=(DimRange("n", 1, 4),),
    )  # fmt: skip

    def manifest(source):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        made = json.loads((export(source, folder, ["source"], outputs=(C,)) / "manifest.json").read_text())
        return {k: v for k, v in made.items() if k not in ("files", "selftest")}

    first = manifest(base)
    parts = {Param: (given, lambda v: {"params": (v, OPEN)}), KernelLaunch: (launch, lambda v: {"kernels": (v,)}),
             TensorMap: (tile, lambda v: {"kernels": (dataclasses.replace(launch, maps=(v,)),)}),
             GatherRange: (base.gathers[0], lambda v: {"gathers": (v,)}),
             Assumed: (base.assumed[0], lambda v: {"assumed": (v,)}),
             UniquePlaces: (base.unique[0], lambda v: {"unique": (v,)}),
             SegmentRange: (base.segments[0], lambda v: {"segments": (v,)}),
             DimRange: (base.dims[0], lambda v: {
                 "dims": (v,), "params": (given, dataclasses.replace(OPEN, shape=(v.name,)))}),
             Source: (base, lambda v: {f.name: getattr(v, f.name) for f in dataclasses.fields(v)})}  # fmt: skip
    lost = set()
    for kind, (value, put) in parts.items():
        for f in dataclasses.fields(kind):
            other = dataclasses.replace(value, **{f.name: neighbour(kind, f.name, getattr(value, f.name))})
            assert other != value
            if (kind, f.name) not in LEFT_OUT and manifest(dataclasses.replace(base, **put(other))) == first:
                lost.add((kind.__name__, f.name))
    assert not lost
