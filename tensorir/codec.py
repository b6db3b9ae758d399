"""Dataclasses <-> JSON by fields and annotations: a new field is encoded without further code.

Only classes with the decorator ``@travels`` are encoded and decoded; tests send every field of each there and back. A
field of plain JSON data may have a predicate, ``checked``, in place of its annotation.
"""

from __future__ import annotations

import base64
import enum
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, overload

T = TypeVar("T")
Json = dict[str, Any]


class CodecError(ValueError):
    """Raised for a value without a JSON form, or JSON data that ``encode`` did not write for the type.

    field: name of the wrong field, if known
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def small_file(path: Path, most: int) -> bytes:
    """Bytes of the file ``path``; raises ValueError, without reading the rest, if it has more than ``most`` bytes."""
    with open(path, "rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise ValueError(f"{path} is larger than {most} bytes")
    return found


_Reader = Callable[[Any], Any]
_sparse: dict[type[Any], bool] = {}
"""Registered class -> True if its JSON omits fields that are None."""


@overload
def travels(kind: type[T]) -> type[T]: ...
@overload
def travels(*, sparse: bool) -> Callable[[type[T]], type[T]]: ...
def travels(kind: type[T] | None = None, *, sparse: bool = False) -> Any:
    """Class decorator that registers a dataclass for ``encode`` and ``decode``: in files, caches, logs and messages to
    other processes.

    sparse: True to omit fields that are None, and None by default; absent fields are read as None

    Raises TypeError for a class that is no dataclass.
    """

    def register(made: type[T]) -> type[T]:
        if not is_dataclass(made):
            raise TypeError(f"{made.__name__} is no dataclass: @travels stands above @dataclass")
        _sparse[made] = sparse
        return made

    return register if kind is None else register(kind)


def checked(test: Callable[[object], bool]) -> Mapping[str, object]:
    """Metadata for a dataclass field of plain JSON data: it is written unchanged, and read if ``test`` accepts it."""
    return {"check": test}


UNKNOWN_FIELDS: Mapping[str, object] = {"unknown": True}
"""Metadata of the dataclass field that collects unknown JSON fields, to be written back unchanged."""


def travelling() -> tuple[type, ...]:
    """Return all registered classes, in the order of their definition."""
    return tuple(_sparse)


@dataclass(frozen=True)
class _Form:
    """JSON form of a registered class.

    names:    its fields, in order
    readers:  (field, reader) of fields read by their annotations
    tests:    (field, predicate) of fields of plain data
    required: fields present in every JSON; others are omitted if None
    unknown:  the field for unknown JSON fields, or None
    """

    names: Mapping[str, None]
    readers: tuple[tuple[str, _Reader], ...]
    tests: tuple[tuple[str, Callable[[object], bool]], ...]
    required: frozenset[str]
    unknown: str | None


@functools.cache
def _form(kind: type[Any]) -> _Form:
    """JSON form of a registered class; raises CodecError for other classes."""
    if kind not in _sparse:
        raise CodecError(f"{kind.__name__} has no form as JSON: it is not declared with @travels")
    hints, found = get_type_hints(kind), [f for f in fields(kind) if "unknown" not in f.metadata]
    tests = tuple((f.name, f.metadata["check"]) for f in found if "check" in f.metadata)
    readers = tuple((f.name, _reader(hints[f.name])) for f in found if "check" not in f.metadata)
    required = frozenset(f.name for f in found if f.default is not None or not _sparse[kind])
    unknown = next((f.name for f in fields(kind) if "unknown" in f.metadata), None)
    return _Form(dict.fromkeys(f.name for f in found), readers, tests, required, unknown)


def encode(value: object) -> dict[str, object]:
    """JSON data of a registered dataclass: {field: value}, nested dataclasses included, without the class's name.

    Tuples become lists, bytes base64 text, enums their values. Sparse classes omit fields that are None and None by
    default; unknown fields kept by ``decode`` are written back. Raises CodecError for unregistered classes.
    """
    form = _form(cast("Any", type(value)))
    made = {name: x for name in form.names if (x := getattr(value, name)) is not None or name in form.required}
    for name, _ in form.readers:
        if name in made:
            made[name] = _plain(made[name])
    return made if form.unknown is None else {**getattr(value, form.unknown), **made}


def decode(kind: type[T], data: object) -> T:
    """Return the instance of ``kind`` whose ``encode`` is ``data``.

    Raises CodecError unless ``data`` has exactly the fields of ``kind``, each of its annotated type or accepted by its
    predicate: data of another version of the class is refused. Sparse classes may lack fields whose default is None;
    with a field marked ``UNKNOWN_FIELDS``, further fields are collected there. An int is read as a float.
    """
    form = _form(cast("Any", kind))
    if not isinstance(data, Mapping):
        raise CodecError(f"{kind.__name__} has the fields {', '.join(form.names)}, not {type(data).__name__}")
    more = () if form.names.keys() >= data.keys() else [name for name in data if name not in form.names]
    if (more and form.unknown is None) or not form.required <= data.keys():
        raise CodecError(f"{kind.__name__} has the fields {', '.join(form.names)}, not {', '.join(map(str, data))}")
    read = {**data}
    if form.unknown is not None and more:
        read[form.unknown] = {name: read.pop(name) for name in more}
    for name, test in form.tests:  # a log has a million of these
        if name in read and not test(read[name]):
            raise CodecError(f"{kind.__name__}.{name}: refused", name)
    for name, reader in form.readers:
        if name in read:
            read[name] = _read(kind, name, reader, read[name])
    return kind(**read)


def plain(value: object) -> Any:
    """Return ``value`` as JSON data: tuples and arrays become lists, NumPy scalars numbers, keys texts; NaN and
    infinities the texts "nan", "inf", "-inf". Raises TypeError for anything else.

    JSON has no NaN, but the maximum error of a wrong result often is NaN; a failure to encode it would turn
    ``wrong_result`` into ``internal_error``.
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


_UNREADABLE = (TypeError, ValueError, KeyError, OverflowError)


def _read(kind: type[Any], name: str, read: _Reader, value: Any) -> Any:
    try:
        return read(value)
    except _UNREADABLE as error:
        raise CodecError(f"{kind.__name__}.{name}: {error}", name) from None


def _reader(hint: Any) -> _Reader:
    """Function that converts JSON data to the type ``hint``; it raises for data of other types. Raises TypeError for a
    type without JSON form.
    """
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
