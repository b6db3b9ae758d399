"""Names that languages have already are refused where they are declared, or built, and right."""

import keyword
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import tensorir as tir

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from hostile_names import NAMES, PLACES, refusal, rows, trial


@pytest.mark.parametrize("place", PLACES)
def test_a_name_is_refused_where_it_is_declared(place):
    """Not in Unicode's normal form, with the code points of what to write instead; of dims what is no identifier."""
    for name in NAMES:
        odd = unicodedata.normalize("NFKC", name) != name
        none = place == "dim" and (not name.isidentifier() or keyword.iskeyword(name))
        code = refusal(place, name)
        assert code in ({"declare.name", "argument.value"} if odd or none else {None}), (name, code)
    with pytest.raises(tir.DeclarationError, match=r"\[declare.name\](.|\n)*U\+03BC"):
        tir.placeholder((4,), name="\u00b5")


@pytest.mark.parametrize("row", [0, 23, 46])
def test_a_program_of_hostile_names_is_right(row, tmp_path):
    """Another name in each place; tools/hostile_names.py tries all, in all languages."""
    at = rows(NAMES, "c")[row]
    assert trial(at, "c", tmp_path) == "right", at


@pytest.mark.parametrize("name", ["\\", '"', "_", "-" * 70])
def test_constants_without_a_letter_have_legal_names(name):
    """Underscores alone, and what is added to them, are no keyword such as ``__const``."""
    table = tir.constant([3, 1, 2], name=name)
    a = tir.placeholder((3,), "int32", name="a")
    made = tir.Schedule(tir.compute((3,), lambda i: a[i] + table[i], name="c"), target="c").build("c")
    assert made(np.array([10, 20, 30], np.int32)).tolist() == [13, 21, 32]


@pytest.mark.parametrize(("name", "target"), [("\\", "folder"), ('"', "folder"), ("x\n", "cuda"), ("tir_x", "cuda")])
def test_names_that_are_no_words_stand_everywhere(name, target, tmp_path):
    """In tables and tests of folders, and in what the emulator is told and says."""
    at = {place: f"n{n}" for n, place in enumerate(PLACES)} | dict.fromkeys(("tensor", "stage", "output"), name)
    for place in ("tensor", "output"):
        assert (
            trial(at | dict.fromkeys({"tensor", "stage", "output"} - {place}, "plain"), target, tmp_path / place)
            == "right"
        )
