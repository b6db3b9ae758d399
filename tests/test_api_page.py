"""The generated page of the Python API has an entry for each public name."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

import tensorir as tir

ELSEWHERE = {"Problem", "Target", "errors", "interp", "lower", "runtime", "tune", "check", "export", "__version__"}
"""Packages, which the pages on them show, and what is not called."""


@pytest.fixture(scope="module")
def page() -> str:
    docs = str(Path(__file__).parents[1] / "docs")
    sys.path.insert(0, docs)
    try:
        return str(importlib.import_module("generate").api())
    finally:
        sys.path.remove(docs)
        sys.modules.pop("generate")


def test_each_public_function_has_an_entry(page):
    called = [n for n in tir.__all__ if n not in ELSEWHERE and callable(getattr(tir, n))]
    assert len(called) > 60
    assert [n for n in called if f"`tir.{n}" not in page] == []


@pytest.mark.parametrize("module", ["nn", "ops"])
def test_each_definition_and_operator_has_an_entry(page, module):
    home = getattr(tir, module)
    names = [n for n in getattr(home, "__all__", dir(home)) if inspect.isroutine(getattr(home, n)) and n[0] != "_"]
    own = [n for n in names if getattr(home, n).__module__.startswith(f"tensorir.{module}")]
    assert own
    assert [n for n in own if f"`tir.{module}.{n}(" not in page] == []
