"""tensorir cache export and import, log freeze: what they print, and their exit codes."""

import json

import pytest

from tensorir.cli import common
from tensorir.tune.log import LogWriter, RunIdentity

DEVICE = {"name": "a \x1b[31mdevice", "platform": "pocl", "driver": "3.0", "target": "opencl"}
TITLE = "mine.py:work a=1"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def log(tmp_path):
    """A log of one workload of a user's file, tuned on a device that is not here."""
    me = RunIdentity(TITLE, "0" * 32, DEVICE, {"tensorir": "0.1.0"})
    ok = {"status": "ok", "time_s": 1e-3, "samples": [1e-3], "source_sha256": "ab" * 32}
    with LogWriter(tmp_path / "log", TITLE) as writer:
        for n in range(3):
            check = {"ok": True, "max_err": 0.0, "shapes": []}
            writer.append(me.record("trial", "t", {"tile": n}, {**ok, "check": check, "time_s": 1e-3 * (n + 1)}))
    return "log"


def test_to_another_machine(cli, log):
    code, out, err = cli("cache", "export", "my.pack", "--log", log)
    assert code == common.OK and "3 records, 0 kernels" in out
    assert f"no kernel of {TITLE}: it is defined outside of tensorir" in err
    code, out, err = cli("cache", "import", "my.pack", "--log", "there")
    assert code == common.OK and "3 records, 0 kernels" in out
    assert r"3 records and 0 kernels are for a \x1b[31mdevice (3.0), which is not here: kept, not used" in err
    code, out, _ = cli("cache", "import", "my.pack", "--log", "there", "--json")
    assert json.loads(out)["devices"][0]["here"] is False
    assert json.loads(cli("log", "best", "--log", "there", "--json")[1])["records"][0]["config"] == {"tile": 0}
    assert cli("cache", "export", "my.pack", "--log", log)[0] == common.OK, "a packed log may be replaced"


def test_what_cannot_be(cli, log, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert cli("cache", "export", "mine.txt", "--log", log)[0] == common.USAGE
    assert cli("log", "freeze", "-o", "mine.txt", "--log", log)[0] == common.USAGE
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert cli("cache", "export", "x", "--log", "nowhere")[0] == common.USAGE
    assert cli("cache", "export", "x", "--log", log, "--workload", "none")[0] == common.NO_CONFIG
    assert cli("cache", "export", "/dev/null/x", "--log", log)[0] == common.BAD_LOG
    for file in ("mine.txt", "absent"):
        code, out, err = cli("cache", "import", file)
        assert code == common.BAD_LOG and not out and "[pack." in err and not (tmp_path / "tuning_logs").exists()


def test_frozen(cli, log, tmp_path):
    code, out, err = cli("log", "freeze", "--log", log)
    assert code == common.OK and r"a \x1b[31mdevice" in out and not err
    code, out, _ = cli("log", "freeze", "--log", log, "--json")  # over the first
    assert code == common.OK
    assert [c["workload"] for c in json.loads(out)["choices"]] == [TITLE]
    for verb in ("ls", "best", "stats", "verify"):
        assert cli("log", verb, "--log", "frozen.json")[0] == common.OK
    assert json.loads(cli("log", "stats", "--log", "frozen.json", "--json")[1])["trials"] == 1
    assert cli("log", "freeze", "--log", log, "--workload", "none")[0] == common.NO_CONFIG
    assert cli("log", "freeze", "--log", "nowhere")[0] == common.NO_CONFIG
    (tmp_path / "frozen.json").write_bytes((tmp_path / "frozen.json").read_bytes()[:-5])
    code, _, err = cli("log", "best", "--log", "frozen.json")
    assert code == common.BAD_LOG and "log.frozen-damaged" in err
