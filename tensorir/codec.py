"""Dataclasses as JSON and back, from their fields and annotations: a field that is added travels as well.

A class that is written says so where it is defined, by ``@travels``: ``encode`` and ``decode`` refuse all others, and
the tests send every field of every registered class there and back.
"""

from __future__ import annotations

import base64
import enum
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

T = TypeVar("T")
Json = dict[str, Any]


class CodecError(ValueError):
    """What is read is not what ``encode`` wrote for that type, or has no form as JSON."""


def small_file(path: Path, most: int) -> bytes:
    """The contents of a file of at most ``most`` bytes; ValueError for a longer one, of which no more is read."""
    with open(path, "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise ValueError(f"{path} is larger than {most} bytes")
    return found


_sparse: dict[type[Any], bool] = {}
"""The registered classes; whether their JSON leaves out fields that are None."""


@overload
def travels(kind: type[T]) -> type[T]: ...
@overload
def travels(*, sparse: bool) -> Callable[[type[T]], type[T]]: ...
def travels(kind: type[T] | None = None, *, sparse: bool = False) -> Any:
    """Register a dataclass that is written as JSON: to a file, a cache, a log or another process.

    sparse: its JSON leaves out fields that are None, and reading takes absent fields for None
    """

    def register(made: type[T]) -> type[T]:
        if not is_dataclass(made):
            raise TypeError(f"{made.__name__} is no dataclass: @travels stands above @dataclass")
        _sparse[made] = sparse
        return made

    return register if kind is None else register(kind)


def travelling() -> tuple[type, ...]:
    """Return all registered classes, in the order of their definition."""
    return tuple(_sparse)


def _registered(kind: type[Any]) -> bool:
    """Whether the JSON of a registered class is sparse; CodecError for a class that is not registered."""
    if kind not in _sparse:
        raise CodecError(f"{kind.__name__} has no form as JSON: it is not declared with @travels")
    return _sparse[kind]


def encode(value: object) -> dict[str, object]:
    """Return a registered dataclass as plain data: an object with every field, nested dataclasses included.

    Tuples are lists, bytes are base64, enums are their values.
    """
    sparse = _registered(type(value))
    found = {f.name: _plain(getattr(value, f.name)) for f in fields(cast("Any", value))}
    return {name: made for name, made in found.items() if made is not None} if sparse else found


def decode(kind: type[T], data: object) -> T:
    """Return the ``kind`` whose ``encode`` is ``data``.

    Raises CodecError unless ``data`` has exactly the fields of ``kind``, each of its annotated type: what another
    version of the class wrote is not guessed at.
    """
    made: Any = kind
    readers = _readers(made)
    if _registered(made) and isinstance(data, Mapping):
        data = {**dict.fromkeys(readers), **data}
    if not isinstance(data, Mapping) or data.keys() != readers.keys():
        found = ", ".join(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise CodecError(f"{kind.__name__} has the fields {', '.join(readers)}, not {found}")
    return kind(**{name: _read(kind, name, read, data[name]) for name, read in readers.items()})


def plain(value: object) -> Any:
    """Return ``value`` as JSON data: tuples become lists, NumPy scalars numbers, NaN and infinities words.

    JSON has no NaN, yet the largest error of a wrong result very often is one; losing the whole
    reply to it would turn ``wrong_result`` into ``internal_error``.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is not JSON data")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if is_dataclass(value):
        return encode(value)
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return _plain(value.tolist())
    raise CodecError(f"{type(value).__name__} has no form as JSON")


_Reader = Callable[[Any], Any]
_UNREADABLE = (TypeError, ValueError, KeyError, OverflowError)


@functools.cache
def _readers(kind: type[Any]) -> Mapping[str, _Reader]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _read(kind: type[Any], name: str, read: _Reader, value: Any) -> Any:
    try:
        return read(value)
    except _UNREADABLE as error:
        raise CodecError(f"{kind.__name__}.{name}: {error}") from None


def _reader(hint: Any) -> _Reader:
    """What makes a value of an annotated type from its plain form; TypeError for a type that has none."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return lambda value: value
    if hint is None or hint is type(None) or hint in (str, int, bool):
        return functools.partial(_exactly, type(None) if hint is None else hint)
    if hint is float:
        return lambda value: float(_exactly(float if isinstance(value, float) else int, value))
    if hint is bytes:
        return lambda value: base64.b64decode(_exactly(str, value), validate=True)
    if origin is tuple:
        return _tuple(args)
    if origin in (types.UnionType, Union):
        return _either(hint, [_reader(a) for a in args])
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_mapping, _reader(args[1]))
    if origin is not None and issubclass(origin, Sequence):
        item = _reader(args[0])
        return lambda value: [item(v) for v in _exactly(list, value)]
    if isinstance(hint, type) and is_dataclass(hint):
        return functools.partial(decode, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    raise TypeError(f"{hint} has no form as JSON")


def _exactly(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise CodecError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _tuple(args: tuple[Any, ...]) -> _Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _reader(args[0])
        return lambda value: tuple(item(v) for v in _exactly(list, value))
    items = [_reader(a) for a in args]
    return lambda value: tuple(read(v) for read, v in zip(items, _exactly(list, value), strict=True))


def _either(hint: Any, readers: Sequence[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        for one in readers:
            try:
                return one(value)
            except _UNREADABLE:
                continue
        raise CodecError(f"{hint} expected, not {type(value).__name__}")

    return read


def _mapping(item: _Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise CodecError(f"an object expected, not {type(value).__name__}")
    return {k: item(v) for k, v in value.items()}
