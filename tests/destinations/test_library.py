"""The shared library of an exported folder: the C program and what frameworks call it by, made at export or there."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import tensorir as tir
from tensorir.export import bodies, folder
from tensorir.export.destination import Destination, Made
from tensorir.export.program import ExportError, ExportProgram
from tensorir.export.shipped import build

needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="there is no C compiler")
SOURCE = b'#include "%s.h"\nint %s(int x) { return x + ADDED; }\n'


def files(part, name):
    word = name.encode()
    return {f"{name}.c": SOURCE % (word, word), f"{name}.h": b"#define ADDED 2\nint %s(int);\n" % word}


@pytest.fixture
def export(monkeypatch, tmp_path):
    """Exports a folder to a destination that has a library, with C of a few lines as its program."""
    body = bodies.Body(".c", ("-std=c11",), "loader_pyopencl.py", (), "C", files)
    monkeypatch.setitem(bodies.BODIES, "c", body)
    door = {"door.c": b'#include "door.h"\nint doubled(int x) { return 2 * NAME(x); }\n'}

    def make(shipment):
        name = shipment.operator.name.encode()
        every = door | {"door.h": b'#include "%s.h"\n#define NAME %s\n' % (name, name)}
        return Made(every, {"symbol": "doubled"}, "", tuple(every))

    for name in ("one", "two"):  # both of them have the same files
        monkeypatch.setitem(folder.DESTINATIONS, name, Destination(name, ("c",), "for this test", make))
    x = tir.placeholder((4,), name="x")
    y = tir.compute((4,), lambda i: x[i] + 1, name="y")
    source = replace(tir.Schedule(y, "opencl").emitted(), language="c")

    def made(where, to=("one", "two"), name="own::added"):
        return folder.export_part(ExportProgram(source, [y]), tmp_path / where, to, name=name)

    made.door = door
    return made


def called(path, **env):
    code = "import ctypes, build; print(ctypes.CDLL(str(build.library())).doubled(20), build.library())"
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=False,
                          env={**os.environ, "XDG_CACHE_HOME": str(path / "cache"), **env})  # fmt: skip
    assert done.returncode == 0, done.stderr
    value, where = done.stdout.split()
    return int(value), where


@needs_compiler
def test_it_is_made_at_export(export):
    path = export("out")
    manifest = json.loads((path / "manifest.json").read_text())
    about = {"file": "libadded.so", "sources": ["added.c", "added.h", "door.c", "door.h"]}
    assert manifest["library"] == about and {"libadded.so", "build.py", *about["sources"]} <= set(manifest["files"])
    assert called(path, PATH="", CC="") == (44, str(path / "libadded.so"))


@needs_compiler
def test_it_is_made_there_where_the_exporter_has_no_compiler(export, monkeypatch):
    with monkeypatch.context() as m:
        m.setenv("CC", "no-such-compiler")
        path = export("out")
    assert "libadded.so" not in json.loads((path / "manifest.json").read_text())["files"]
    assert called(path) == (44, str(path / "libadded.so"))
    shutil.copytree(path, path.parent / "copy")
    with monkeypatch.context() as m:
        m.setenv("CC", "no-such-compiler")
        export("out")
    assert not (path / "libadded.so").exists(), "an export takes away what was made of an earlier one"


@needs_compiler
def test_text_that_does_not_compile_is_an_error_of_the_export(export, tmp_path):
    export.door["door.c"] = b"int doubled(int x) { return nothing; }\n"
    with pytest.raises(ExportError, match="cannot be made") as caught:
        export("out")
    assert caught.value.code == "export.library" and "nothing" in str(caught.value)
    assert not (tmp_path / "out").exists()


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is loaded is read from /proc")
def test_it_stays_where_it_is_unloaded(export):
    """Threads that a kernel started sleep in it."""
    path = export("out")
    code = "import _ctypes, ctypes; _ctypes.dlclose(ctypes.CDLL('./libadded.so')._handle)"
    code += "; print(open('/proc/self/maps').read().count('libadded.so') > 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@needs_compiler
def test_a_user_without_a_home_has_the_folder_alone(export, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.Path, "home", no_home)
    with monkeypatch.context() as m:
        m.setenv("CC", "no-such-compiler")
        path = export("out")
    manifest = json.loads((path / "manifest.json").read_text())
    monkeypatch.setattr(build, "HERE", path)
    assert build.library(manifest) == path / "libadded.so"
    (path / "libadded.so").unlink()
    monkeypatch.setattr(build, "put", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    with pytest.raises(ImportError, match="XDG_CACHE_HOME"):
        build.library(manifest)
