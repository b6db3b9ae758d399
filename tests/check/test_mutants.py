"""A small part of tools/mutants/run.py: no mutant survives without a computed reason."""

import pytest
import run as mutants
from mutated_programs import PROGRAMS


@pytest.mark.parametrize("name", ["tiled opencl", "chain opencl", "exchange cuda", "partial_sums opencl", "pool cuda"])
def test_no_mutant_survives(name):
    results = mutants.run_program(name, PROGRAMS[name], each=40)
    out = mutants.summary(results)
    assert out["mutants"] >= 40
    assert not out["survived"], out["survivors"]
    assert out["killed"] > 0.85 * out["mutants"]


def test_deleted_barriers_are_races():
    results = [r for r in mutants.run_program("exchange opencl", PROGRAMS["exchange opencl"]) if r.kind == "barrier"]
    assert len(results) == 2
    assert {r.code for r in results} == {"race.shared"}


def test_deleted_inits_are_uninitialised_reads():
    results = [r for r in mutants.run_program("tiled opencl", PROGRAMS["tiled opencl"]) if r.kind == "init"]
    assert {r.code for r in results} == {"memory.uninitialised"}
