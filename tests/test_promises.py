"""The README's promises, each with the tests that keep it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

KEPT_BY = {
    "A kernel returned by tune or load has passed the reference check": (
        "api/test_tuning.py::test_load_gives_the_checked_winner",
        "api/test_tuning.py::test_nearest_shapes_are_checked_here",
        "tune/test_loop.py::test_finalist_found_wrong_is_never_returned",
        "tune/test_log.py::test_once_wrong_never_chosen",
    ),
    "No candidate can change your data, kill your process, or outlive its budget": (
        "api/test_chaos.py::test_each_has_its_status",
        "api/test_tuning.py::test_budget_holds_even_for_a_hang",
        "tune/test_process.py::test_crash_names_the_signal_and_the_next_request_works",
        "tune/test_process.py::test_hang_is_reported_by_phase",
        "test_survival.py::test_a_tuning_with_such_text",
    ),
    "A killed run loses at most the trial in flight": (
        "tune/test_log.py::test_every_cut_keeps_the_complete_records",
        "tune/test_log.py::test_append_after_a_torn_line_starts_afresh",
        "tune/test_process.py::test_killed_parent_leaves_nothing",
        "tune/test_faults.py::test_killed_at_random_instants_nothing_finished_is_lost",
        "tune/test_faults.py::test_cut_at_every_byte_n_or_one_less_are_left",
        "tune/test_faults.py::test_a_full_disk_stops_after_the_trial",
    ),
    "Same log and same version": (
        "api/test_tuning.py::test_load_gives_the_checked_winner",
        "examples/test_te.py::test_replay_gives_the_same_tree_and_source",
    ),
    "Logs and caches are data": (
        "tune/test_log.py::test_reading_executes_nothing",
        "test_package.py::test_data_is_never_code",
        "cli/test_hostile.py::test_verbs_that_read_logs",
        "cli/test_hostile.py::test_every_lie_by_itself_in_a_load",
    ),
    "A stale record is never used silently": (
        "api/test_tuning.py::test_load_never_uses_a_stale_record",
        "api/test_pinned.py::test_what_changed_is_said",
        "cli/test_packed.py::test_the_machine_code_is_checked_before_it_is_used",
        "tune/test_log.py::test_verify_finds_stale_sources",
    ),
    "Bad input never ends in a traceback": (
        "cli/test_commands.py::test_wrong_use_is_a_short_message",
        "cli/test_commands.py::test_internal_errors_go_to_a_file",
        "tune/test_log.py::test_junk_is_never_a_record",
        "test_error_catalogue.py::test_examples_are_true",
    ),
}


def promises():
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Promises", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. (.+)$", text, re.MULTILINE)


def test_the_readme_promises_what_is_kept():
    assert len(promises()) == len(KEPT_BY)
    for said, known in zip(promises(), KEPT_BY, strict=True):
        assert said.startswith(known)


@pytest.mark.parametrize("test", sorted({t for tests in KEPT_BY.values() for t in tests}))
def test_there_is_such_a_test(test):
    file, name = test.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
