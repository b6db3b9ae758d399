"""The packed file: written whole, refused whole."""

import hashlib
import io
import json
import os
import stat
import struct
import zipfile

import pytest

from tensorir.tune import pack
from tensorir.tune.pack import PackError, opened, write_pack

LOG, BIN = "log/matmul-01234567.jsonl", "cache/" + "ab" * 32 + ".bin"
MEMBERS = {LOG: b"one\ntwo\n", BIN: os.urandom(3000)}


def read(path):
    with opened(path) as p:
        return {n: p.read(n) for folder in ("log", "cache") for n in p.names(folder)}, p.about


def refused(path, code="pack.damaged"):
    with pytest.raises(PackError) as caught:
        read(path)
    assert caught.value.code == code, str(caught.value)
    return str(caught.value)


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "a.pack"
    write_pack(path, MEMBERS, {"tensorir": "0.1.0"})
    assert read(path) == (MEMBERS, {"tensorir": "0.1.0"})
    first = path.read_bytes()
    write_pack(path, dict(reversed(MEMBERS.items())), {"tensorir": "0.1.0"})
    assert path.read_bytes() == first and [p.name for p in tmp_path.iterdir()] == ["a.pack"]
    for bad in (tmp_path / "absent" / "x", tmp_path):
        with pytest.raises(PackError) as caught:
            write_pack(bad, MEMBERS, {})
        assert caught.value.code == "pack.unwritable"
    refused(tmp_path / "none", "pack.unreadable")
    refused(tmp_path, "pack.unreadable")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "pack.unreadable")


def test_every_cut_is_refused(tmp_path):
    write_pack(tmp_path / "a.pack", MEMBERS, {})
    whole = (tmp_path / "a.pack").read_bytes()
    for cut in [*range(0, len(whole), 97), *range(len(whole) - 30, len(whole))]:
        (tmp_path / "a.pack").write_bytes(whole[:cut])
        refused(tmp_path / "a.pack")
    (tmp_path / "a.pack").write_bytes(whole + b"\0")
    refused(tmp_path / "a.pack")


def test_flipped_bytes_are_refused_or_without_effect(tmp_path):
    write_pack(tmp_path / "a.pack", MEMBERS, {})
    whole, harmless = (tmp_path / "a.pack").read_bytes(), 0
    for place in range(0, len(whole), 29):
        (tmp_path / "a.pack").write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert read(tmp_path / "a.pack") == (MEMBERS, {})  # a date, a right: nobody reads them
            harmless += 1
        except PackError as error:
            assert error.code in ("pack.damaged", "pack.too-large")
    assert harmless < len(whole) / 29 / 4


def crafted(members, manifest=None, **about):
    """An archive as somebody else might make it: pairs of name (or ZipInfo) and data."""
    listed = [
        {"name": getattr(n, "filename", n), "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in members
    ]
    text = json.dumps({"pack": 1, "members": listed, **about}).encode() if manifest is None else manifest
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in [("manifest.json", text), *members]:
            z.writestr(name, data)
    return made.getvalue()


def info(name, kind=stat.S_IFREG, packing=zipfile.ZIP_DEFLATED):
    made = zipfile.ZipInfo(name)
    made.external_attr, made.compress_type = (kind | 0o777) << 16, packing
    return made


def lied(field, value):
    """The manifest says something else of a member."""
    entry = {"name": LOG, "size": 4, "sha256": hashlib.sha256(b"one\n").hexdigest(), field: value}
    return crafted([(LOG, b"one\n")], json.dumps({"pack": 1, "members": [entry]}).encode())


def hostile():
    good = crafted([(LOG, b"one\n")])
    end = good[-22:]
    other = crafted([(info(LOG, packing=zipfile.ZIP_STORED), b"one\n")]).replace(b"one\n", b"two\n")
    return {
        "parent": crafted([("../x.jsonl", b"x")]),
        "deep parent": crafted([("log/../../x.jsonl", b"x")]),
        "absolute": crafted([("/etc/x", b"x")]),
        "backslash": crafted([("log\\x-01234567.jsonl", b"x")]),
        "null": crafted([(LOG + "\0.txt", b"x")]),
        "drive": crafted([("C:x", b"x")]),
        "other name": crafted([("log/x.txt", b"x")]),
        "upper": crafted([(BIN.upper(), b"x")]),
        "link": crafted([(info(LOG, stat.S_IFLNK), b"/etc/passwd")]),
        "device": crafted([(info(LOG, stat.S_IFCHR), b"x")]),
        "folder": crafted([(info("log/", stat.S_IFDIR), b"")]),
        "packing": crafted([(info(LOG, packing=zipfile.ZIP_LZMA), b"one\n")]),
        "size": lied("size", 5),
        "smaller": lied("size", 3),
        "negative": lied("size", -1),
        "huge": lied("size", 10**30),
        "real": lied("size", 4.0),
        "digest": lied("sha256", "0" * 64),
        "digest type": lied("sha256", None),
        "name type": lied("name", 3),
        "more": lied("extra", 1),
        "another": lied("name", BIN),
        "none": crafted([(LOG, b"one\n")], b'{"pack": 1, "members": []}'),
        "no manifest": crafted([], b"[]"),
        "equal keys": crafted([], b'{"pack": 1, "pack": 1, "members": []}'),
        "NaN": crafted([], b'{"pack": NaN, "members": []}'),
        "bomb of brackets": crafted([], b'{"pack": 1, "members": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"),
        "version": crafted([], b'{"pack": "1", "members": []}'),
        "code": crafted([], b"__import__('os').system('touch pwned')"),
        "comment": good[:-2] + b"\2\0hi",
        "no zip": b"PK" * 100,
        "empty": b"",
        "another digest": other,
        "many disks": end[:4].join([good[:-22], b"\1" + end[5:]]),
        "count": good[:-22] + end[:8] + b"\3\0\3\0" + end[12:],
        "zip64": good[:-22] + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1) + end,
        "encrypted": good.replace(b"\0\0\x08\0", b"\1\0\x08\0"),
    }


HOSTILE = hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path, name):
    (tmp_path / "x.pack").write_bytes(HOSTILE[name])
    refused(tmp_path / "x.pack")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_name_twice_is_refused(tmp_path):
    (tmp_path / "x.pack").write_bytes(crafted([(LOG, b"one\n"), (LOG, b"one\n")]))
    refused(tmp_path / "x.pack")


def test_no_more_is_unpacked_than_the_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "MOST_MEMBER", 1 << 20)
    (tmp_path / "x.pack").write_bytes(crafted([(LOG, bytes(2 << 20))]))
    refused(tmp_path / "x.pack", "pack.too-large")
    (tmp_path / "x.pack").write_bytes(crafted([(f"log/a-{n:08x}.jsonl", bytes(1 << 20)) for n in range(3)]))
    refused(tmp_path / "x.pack", "pack.too-large")  # 1000 to 1
    with monkeypatch.context() as context:
        context.setattr(pack, "MOST_MEMBERS", 2)
        refused(tmp_path / "x.pack", "pack.too-large")
    with monkeypatch.context() as context:
        context.setattr(pack, "MOST_BYTES", 100)
        refused(tmp_path / "x.pack", "pack.too-large")


def test_a_member_that_unpacks_to_more_than_it_says(tmp_path):
    """The list of members and the manifest agree on 4 bytes; the stream holds a megabyte."""
    data = bytes(1 << 20)
    entry = {"name": LOG, "size": 4, "sha256": hashlib.sha256(data[:4]).hexdigest()}
    made = crafted([(LOG, data)], json.dumps({"pack": 1, "members": [entry]}).encode())
    made = made.replace(struct.pack("<L", 1 << 20), struct.pack("<L", 4))
    (tmp_path / "x.pack").write_bytes(made)
    refused(tmp_path / "x.pack")


def test_other_versions_say_so(tmp_path):
    (tmp_path / "x.pack").write_bytes(crafted([], b'{"pack": 2, "what": "ever"}'))
    refused(tmp_path / "x.pack", "pack.version")


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path):
    for name in ("a.pack", "b.pack"):
        write_pack(tmp_path / name, {LOG: os.urandom(100_000)}, {})
    with opened(tmp_path / "a.pack") as p:
        (tmp_path / "a.pack").write_bytes((tmp_path / "b.pack").read_bytes())
        with pytest.raises(PackError):
            p.read(LOG)
