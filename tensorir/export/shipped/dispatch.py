"""The programs of this folder by shape; needs what loader.py needs.

from FOLDER import Programs           # its parent on sys.path; or, this folder first on it, from dispatch ...
programs = Programs()                 # Programs(queue=...) for one of yours, with pyopencl
program = programs(m=64, n=64, k=64)  # by the parameters of a shape: compiled when first asked for, then kept
result = program(a, b)                # see loader.py
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(f"exported_{name}", HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Programs:
    """All programs of this folder on one device, selected by shape."""

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.loader = sibling("loader")
        self.manifest: dict[str, Any] = sibling("common").read_manifest()  # no file was changed, choose.py neither
        self.choose = sibling("choose").choose
        self.made: dict[int, Any] = {}

    def number(self, **parameters: object) -> int:
        """Number of the program for a shape; parameters common to all shapes may be omitted."""
        kernel = self.choose(**parameters)  # refuses other parameters, and words that no kernel was tuned for
        for n, about in enumerate(self.manifest["programs"]):
            if all(about["parameters"][name] == value for name, value in parameters.items()):
                return n
        said = ", ".join(f"{name}={value}" for name, value in parameters.items())
        raise ValueError(f"no program for {said}; the kernel to make it by is {kernel}")

    def __call__(self, **parameters: object) -> Any:
        """Program for a shape, compiled on first use."""
        n = self.number(**parameters)
        if n not in self.made:
            self.made[n] = self.loader.Program(manifest=self.manifest["programs"][n], **self.given)
            if hasattr(self.made[n], "queue"):
                self.given.setdefault("queue", self.made[n].queue)  # all of them on one
        return self.made[n]
