"""Files of shapes: a line as on the command line, or a list in JSON; each with an optional weight."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tensorir import ops
from tensorir.cli.common import Stop, usage
from tensorir.cli.options import FLAGS, argument, option
from tensorir.codec import small_file

_WEIGHT = option("--weight", type=click.FloatRange(min=0), default=1.0)
MOST = 1 << 20  # bytes
Read = Callable[[tuple[str, ...], dict[str, Any]], dict[str, Any]]
Row = tuple[dict[str, Any], float]


def read_shapes(path: Path, op: str, read: Read, given: dict[str, object]) -> list[Row]:
    """Parameters and weights of the shapes in a file.

    Text: ``1x64x56x56 64x64x3x3 --pad 1 --weight 3``, one shape a line, a comment after #. JSON: a list of objects
    such as ``{"n": 1, "c": 64, …, "weight": 3}``. What the command says holds where a line says nothing.

    read: from shapes as typed and flags to parameters
    """
    try:
        text = small_file(path, MOST).decode("utf-8-sig")  # editors on Windows begin a text with a mark
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
    line_of = click.Command("shape", params=[argument("shape", nargs=-1), _WEIGHT, *FLAGS])
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
