"""Names that languages have already are refused where they are declared, or built, and right."""

import keyword
import sys
import unicodedata
from pathlib import Path

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
