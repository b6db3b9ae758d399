"""``__init__`` of this folder as a package: ``import FOLDER`` with the folder's parent on ``sys.path``.

Names are imported on first use: ``Program`` from ``loader.py`` or ``Programs`` from ``dispatch.py``, and ``call`` from
``door_jax.py`` if present. If ``door_torch.py`` is present and torch installed, that module is imported at once: it
registers the operator.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PUBLIC = {"Programs": "dispatch"} if (HERE / "dispatch.py").exists() else {"Program": "loader"}
PUBLIC |= {"call": "door_jax"} if (HERE / "door_jax.py").exists() else {}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(PUBLIC)}")
    parent = sys.modules.get(__name__.rpartition(".")[0])
    first = PathFinder.find_spec(__name__, None if parent is None else parent.__path__)
    where = HERE if first is None or first.origin is None else Path(first.origin).resolve().parent
    if where != HERE and (where / "manifest.json").exists():  # its import found this one in sys.modules
        raise ImportError(
            f"two exported folders are named {__name__}: {HERE} was imported, {where} is first on sys.path; "
            f"rename one, or put it alone on sys.path and import its {PUBLIC[name]}"
        )
    return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *PUBLIC]


if (HERE / "door_torch.py").exists() and find_spec("torch") is not None:
    import_module(f"{__name__}.door_torch")
