"""Parses what users type (shapes, operators, files, records) to functions that make workloads."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tensorir import ops
from tensorir.api.origin import from_file
from tensorir.api.workload import Workload
from tensorir.cli.common import Stop, no_such, usage
from tensorir.cli.options import FLAGS as FLAG_OPTIONS
from tensorir.cli.options import argument, option
from tensorir.codec import small_file
from tensorir.errors import DeclarationError, TensorIRError
from tensorir.errors.spelling import nearest
from tensorir.ops.operators import FLAGS, OPERATORS
from tensorir.ops.shapes import SETS
from tensorir.tune.log import LogReader, show
from tensorir.tune.record import Record

Options = Mapping[str, Any]
Make = Callable[[], Workload]
Read = Callable[[tuple[str, ...], dict[str, Any]], dict[str, Any]]
Row = tuple[dict[str, Any], float]
_WEIGHT = option("--weight", type=click.FloatRange(min=0), default=1.0)
MAX_SHAPES_BYTES = 1 << 20  # of a file


def workloads(op: str, shapes: Sequence[str], options: Options) -> list[Make]:
    """Functions without parameters that make the workloads of OP and SHAPES: one, or all of a set (``--shapes``).

    op: an operator, FILE.py:FUNCTION, or the id of a record in ``options["log"]``. Raises usage errors (``Stop``).
    """
    return [make for make, _ in weighted(op, shapes, options)]


def weighted(op: str, shapes: Sequence[str], options: Options) -> list[tuple[Make, float]]:
    """[(function that makes a workload, its weight)] as ``workloads``; weights are 1 outside of sets (``--shapes``)."""
    if op in OPERATORS and options.get("shapes"):
        return _set(op, str(options["shapes"]), shapes, options)
    return [(make, 1.0) for make in _without_set(op, shapes, options)]


def _without_set(op: str, shapes: Sequence[str], options: Options) -> list[Make]:
    if op in OPERATORS:
        return [_maker(op, _read(op, shapes, options))]
    if options.get("shapes"):
        raise usage(f"--shapes is for {', '.join(OPERATORS)}")
    if ".py:" in op or op.endswith(".py"):
        if shapes:
            raise usage(f"{op} takes --arg K=V, not shapes", f"tensorir tune {op} --arg M=512")
        return [_file(op, options.get("arg") or ())]
    if re.fullmatch(r"[0-9a-f]{6,16}", op) and not shapes:
        record = record_named(op, str(options.get("log") or "tuning_logs"))
        if record is not None:
            return [from_title(record.workload)]
        raise usage(f"there is no record {op} in {options.get('log')}", "tensorir log ls")
    raise no_such("operator", op, OPERATORS, ", FILE.py:FUNCTION, or the id of a record")


def _read(op: str, shapes: Sequence[str], options: Options) -> dict[str, Any]:
    """Parameters of an operator, by name, from the texts of shapes and the command's flags. Raises a usage error."""
    try:
        return OPERATORS[op].read(shapes, _own(op, options))
    except DeclarationError as e:
        raise usage(e.problems[0].message, e.problems[0].hint) from None


def _own(op: str, options: Options) -> dict[str, Any]:
    _foreign(op, options)
    return {k: options[k] for k in OPERATORS[op].flags if options.get(k) is not None}


def _foreign(op: str, options: Options) -> None:
    """Raise a usage error if ``options`` has a flag that operator ``op`` does not take."""
    for other in OPERATORS.values():
        for name in other.flags:
            if name not in OPERATORS[op].flags and options.get(name) not in (None, False):
                raise usage(f"{FLAGS[name].option} belongs to {other.name}, not to {op}")
    if options.get("arg"):
        raise usage("--arg belongs to FILE.py:FUNCTION")


def _maker(op: str, params: dict[str, Any]) -> Make:
    def make() -> Workload:
        work: Workload = getattr(ops, op)(**params)
        return work

    return make


def _set(op: str, name: str, shapes: Sequence[str], options: Options) -> list[tuple[Make, float]]:
    """[(function that makes a workload, its weight)] for a named set of shapes or a file of shapes."""
    if shapes:
        raise usage("give shapes, or --shapes NAME, not both")
    given = _own(op, options)
    key = name.lower().replace("-", "").replace("_", "")
    sets = {k: v for k, v in SETS.items() if v[0] == op}
    if key in sets:
        _, params, counts = sets[key]
        return [(_maker(op, {**p, **given}), float(n)) for p, n in zip(params, counts, strict=True)]
    if not Path(name).is_file():
        known = ", ".join(sets) or "none for this operator"
        near = "".join(f"{n}?  " for n in nearest(key, sets))
        raise usage(f"there is no set of {op} shapes, and no file, {name!r:.60}", f"{near}{known}, or a file of shapes")
    rows = read_shapes(Path(name), op, lambda shape, flags: _read(op, shape, flags), given)
    return [(_maker(op, params), weight) for params, weight in rows]


def _file(op: str, arguments: Sequence[str]) -> Make:
    place, _, function = op.rpartition(":")
    if not function or not place.endswith(".py"):
        raise usage(f"{op} names no function", "FILE.py:FUNCTION, a function that returns a tir.Workload")
    if not Path(place).is_file():
        raise usage(f"there is no file {place}")
    options = dict(_argument(a) for a in arguments)

    def make() -> Workload:
        return from_file(place, function, options)

    return make


def _argument(text: str) -> tuple[str, Any]:
    """(K, V) of the option text ``K=V``; V parsed as JSON if possible, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise usage(f"--arg {text!r:.60} is not K=V")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def config_option(text: str | None) -> dict[str, Any] | None:
    """Configuration from ``--config``: a JSON object, or ``k=v,k=v`` (values in JSON or text, without commas); None for
    None. Raises a usage error for other texts.
    """
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise usage(f"--config {text!r:.60} is not JSON") from None
        return dict(found)
    return dict(_argument(part) for part in text.split(",") if part)


def record_named(name: str, log: str) -> Record | None:
    """The only record in ``log`` whose id starts with ``name``; None if no record or several match."""
    found = [r for r in show(LogReader(log), name) if r.id.startswith(name)]
    return found[0] if len(found) == 1 else None


def from_title(title: str, instead: str = "FILE.py:FUNCTION") -> Make:
    """Function without arguments that makes the workload of a log's title, such as ``conv2d n=1 c=64 …``.

    Raises a usage error for operators of others, unknown or missing parameters, and text in place of a number; other
    wrong values raise in its call.

    instead: hint of the first error
    """
    name, *pairs = title.split() or [""]
    if name not in OPERATORS:
        raise usage(f"{title:.80} is not an operator of tensorir", instead)
    try:
        given = {k: _value(k, v) for k, _, v in (p.partition("=") for p in pairs)}
        inspect.signature(getattr(ops, name)).bind(**given)
    except (TypeError, ValueError) as e:
        raise usage(f"{name}: {e!s:.80}", "another version of tensorir may have written this") from None
    return _maker(name, given)


def work_of(title: str) -> Workload | None:
    """Workload of a title in a log; None if it is no operator of this package. Runs no code from elsewhere."""
    try:
        return from_title(title)()
    except (Stop, TensorIRError, TypeError, ValueError, OverflowError):
        return None


def _value(name: str, text: str) -> Any:
    kind = FLAGS[name].kind if name in FLAGS else "int"
    if kind == "switch" and text in ("0", "1"):
        return text == "1"
    if re.fullmatch(r"-?\d{1,12}", text):
        return int(text)
    if kind == "float":
        return float(text)
    return {"None": None, "True": True, "False": False}.get(text, text)


def read_shapes(path: Path, op: str, read: Read, given: dict[str, object]) -> list[Row]:
    """[(parameters, weight)] of the shapes in a file.

    Text: ``1x64x56x56 64x64x3x3 --pad 1 --weight 3``, one shape a line, comments after #. JSON: a list of objects such
          as ``{"n": 1, "c": 64, …, "weight": 3}``. The weight is 1 where none is given.

    read:  function from shape texts and flags to parameters
    given: the command's options, defaults for each shape
    Raises a usage error, with the line, for a file that is unreadable, malformed, empty, or larger than 1 MiB.
    """
    try:
        text = small_file(path, MAX_SHAPES_BYTES).decode("utf-8-sig")  # editors on Windows begin a text with a mark
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise usage(f"{path} is not text") from None
    except ValueError as error:
        raise usage(f"{error}: not a list of shapes") from None
    rows = _json(path, text, op, given) if text.lstrip().startswith("[") else _lines(path, text, read, given)
    if not rows:
        raise usage(f"{path} holds no shapes", "a line such as: 1x64x56x56 64x64x3x3 --pad 1 --weight 3")
    return rows


def _lines(path: Path, text: str, read: Read, given: dict[str, Any]) -> list[Row]:
    line_of = click.Command("shape", params=[argument("shape", nargs=-1), _WEIGHT, *FLAG_OPTIONS])
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
            if not words:
                continue
            found = line_of.make_context("shape", words).params
        except click.exceptions.Exit:
            raise usage(f"{path}, line {number}: --help is no shape") from None
        except (click.ClickException, ValueError) as error:
            words_of = error.format_message() if isinstance(error, click.ClickException) else str(error)
            raise usage(f"{path}, line {number}: {words_of:.200}") from None
        shape, weight = found.pop("shape"), found.pop("weight")
        if not weight < float("inf"):
            raise usage(f"{path}, line {number}: the weight {weight} is not a number from 0 up")
        try:
            rows.append((read(shape, {**given, **{k: v for k, v in found.items() if v is not None}}), weight))
        except Stop as stop:
            raise Stop(stop.code, f"{path}, line {number}: {stop.message}") from None
    return rows


def _json(path: Path, text: str, op: str, given: dict[str, Any]) -> list[Row]:
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise usage(f"{path} is not JSON: {error!s:.100}") from None
    rows = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise usage(f"{path}, shape {number} is not an object", '{"m": 64, "n": 64, "k": 64, "weight": 3}')
        params = {**given, **item}
        weight = params.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise usage(f"{path}, shape {number}: the weight {weight!r:.40} is not a number from 0 up")
        try:
            inspect.signature(getattr(ops, op)).bind(**params)
        except TypeError as error:
            raise usage(f"{path}, shape {number}: {op}: {error!s:.80}") from None
        rows.append((params, float(weight)))
    return rows
