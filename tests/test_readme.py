"""What the README shows works: its Python runs, its commands are those that .ci/run runs, its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_tour_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, code in enumerate(blocks("python"), 1):
        exec(compile(code, f"README.md, Python block {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "split.covers-extent" in said  # the error that it shows
    assert "__kernel" in said
    assert "__global__" in said


@pytest.mark.parametrize("name", ["main-job", "tests"])
def test_commands_are_marked_for_ci(name):
    found = re.search(rf"^<!-- ci: {name} -->\n```bash\n(.+)\n```$", README, re.MULTILINE)
    assert found is not None
    assert found[1].startswith("python3 -m venv .venv && . .venv/bin/activate && pip install ")
    assert f"for name in {'main-job tests'}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith("http") and not target.startswith("generated/"):
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("verb", re.findall(r"^tensorir (\w+)", README, re.MULTILINE))
def test_verbs_exist(verb):
    from tensorir.cli.main import VERBS

    assert verb in VERBS
