"""Kernels times destinations: every folder tests itself in a fresh environment of its destination, without tensorir.

    python benchmarks/frameworks/destinations.py [--to c,torch] [--kernels matmul,conv2d] [--environments DIR] [-o FILE]

For each destination: an environment with NumPy and its framework alone; the self-test of every kernel, which must pass;
the same with a changed byte of the kernel, which must fail: by the digest in the manifest, and by the results where the
digest is made anew; three folders in one process. For C the program of the folder tests itself too, and must see the
byte. All destinations of a kernel are in one folder, except where one refuses the kernel, which the result then says.
A path DEST=DIR in --have uses packages that are in DIR instead of installing them, and --install 'onnxruntime=
onnxruntime==1.17.3 numpy<2' other ones than the newest; "DEST=newest" beside it has both. Exit status 1 when anything
is not as it must be.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np

import tensorir as tir
from tensorir.errors import TensorIRError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
from versus.environment import environment as environment_here
from versus.environment import now

PACKAGES = {
    "source": ["pyopencl", "pocl-binary-distribution"],
    "pyopencl": ["pyopencl", "pocl-binary-distribution"],
    "c": [],
    "torch": ["torch"],
    "jax": ["jax"],
    "onnxruntime": ["onnxruntime"],
    "tvm_ffi": ["apache-tvm-ffi"],
}
"""What a fresh environment of a destination has besides NumPy. CuPy has no row: it needs a GPU."""

VERSIONS = """
import platform
from importlib.metadata import distributions
print("python", platform.python_version())
for name, version in sorted({(d.name, d.version) for d in distributions()}):
    print(name, version)
"""
THREE = """
import importlib.util, sys
modules = []
for n, folder in enumerate(sys.argv[2:]):
    spec = importlib.util.spec_from_file_location(f"selftest_{n}", folder + "/selftest.py")
    modules.append(importlib.util.module_from_spec(spec))
    spec.loader.exec_module(modules[-1])
assert not [m for m in [*modules, *modules] if m.main([sys.argv[1]])]
assert "tensorir" not in sys.modules
"""


def several():
    """Sum and difference."""
    x, y = tir.placeholder((60, 33), name="x"), tir.placeholder((60, 33), name="y")
    both = tir.compute((60, 33), lambda i, j: (x[i, j] + y[i, j], x[i, j] - y[i, j]), name="both")
    return tir.Schedule(both)


def scaled():
    """Two numbers and a vector."""
    a, n, x = tir.scalar("a"), tir.scalar("n", "int32"), tir.placeholder((100,), name="x")
    return tir.Schedule(tir.compute((100,), lambda i: a * x[i] + tir.cast(n, "float32"), name="y"))


def gathered():
    """Rows of a table by their numbers."""
    table, rows = tir.placeholder((50, 24), name="table"), tir.placeholder((17,), "int32", name="rows")
    return tir.Schedule(tir.compute((17, 24), lambda i, j: table[rows[i], j], name="y"))


def conv(template=None, **given):
    shape = {"n": 1, "c": 16, "h": 14, "w": 14, "k": 32, "r": 3, "s": 3, "pad": 1}
    return tir.ops.conv2d(**{**shape, **given}).schedule(template=template)


def of_shapes(path, to):
    """A set of two, tuned for a moment: what is exported is what a log has."""
    works = [tir.ops.matmul(m=m, n=48, k=32) for m in (16, 64)]
    with tempfile.TemporaryDirectory() as log:
        for work in works:
            work.tune(trials=2, budget="60s", log=log)
        return tir.export_shapes(works, path, to, log=log)


KERNELS = {
    "matmul": lambda: tir.ops.matmul(m=65, n=48, k=33).schedule(),
    "matmul_f16": lambda: tir.ops.matmul(m=64, n=48, k=32, dtype="float16").schedule(),
    "matmul_prepacked": lambda: tir.ops.matmul(m=64, n=48, k=32, prepack=True).schedule(),
    "matmul_batched": lambda: tir.ops.matmul(m=33, n=16, k=20, batch=3).schedule(),
    "conv2d": lambda: conv(bias=True, act="relu"),
    "conv2d_nhwc": lambda: conv(layout="NHWC"),
    "depthwise": lambda: conv(k=16, groups=16),
    "winograd": lambda: conv("cpu_winograd"),
    "grouped": lambda: conv(groups=4),
    "several_outputs": several,
    "scalars": scaled,
    "gather": gathered,
    "shapes": None,
}


def write(name, path, to):
    """The folder of a kernel with all destinations that take it; what others say."""
    refused = {}
    made = None if KERNELS[name] is None else KERNELS[name]()
    while to:
        try:
            if made is None:
                return of_shapes(path, to), to, refused
            return made.export(path, to, name=f"bench::{name}"), to, refused
        except TensorIRError as error:
            one = next((d for d in to if d != "source" and alone(name, made, d)), None)
            if one is None:
                raise
            refused[one] = f"[{error.code}] {error.problems[0].message}"
            to = [d for d in to if d != one]
    return None, to, refused


def alone(name, made, destination):
    """Whether a destination refuses the kernel by itself."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            if made is None:
                from tensorir.export.destinations import DESTINATIONS

                return not DESTINATIONS[destination].sets
            made.export(Path(folder) / name, destination)
        except TensorIRError:
            return True
    return False


def environment(destination, root, have, packages=()):
    """The folder of an environment for a destination, which has these packages, and the command of its Python."""
    words = packages or ["numpy", *([] if destination in have else PACKAGES[destination])]
    folder = root / "-".join([destination, *re.findall(r"\w[\w.]*", "-".join(packages))])
    if not (folder / "bin").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "-q", *words], check=True)
        if destination in have:
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "have.pth").write_text(f"{have[destination]}\n")
    return folder, [str(folder / "bin/python"), "-I"]


def run(command, *args):
    keep = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [*map(str, [*command, *args])], env=keep, capture_output=True, text=True, timeout=900, cwd="/", check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


BYTES = ((" += ", " -= "), ("rows[i] * 24", "rows[i] * 23"), ("] + y[", "] - y["), ("a * ", "a + "))
"""A byte of a kernel, and what is there instead: by the first of these that the text has."""


def another(text):
    """The text with one byte of it changed; in C, one of each width's, as any of them may be the one that runs.

    A text that widths share stands in front, and those include it
    """
    common, *widths = re.split(r"(?=/\* --- registers of)", text)  # what stands before them is not the kernel's
    parts = [w for w in widths if "#define TIR_BYTES" not in w] or [common]
    pair = next(pair for pair in BYTES if all(pair[0] in part for part in parts))
    return "".join(
        [*([common] if widths else ()), *(w.replace(*pair, 1) if w in parts else w for w in widths or parts)]
    )


def changed(folder, destination, where, silently):
    """A copy of the folder with another byte in the kernel that the destination runs.

    silently: the manifest has the digest of the other text, and nothing that was built of the first one is there
    """
    copy = where / folder.name
    shutil.copytree(folder, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    row = manifest["programs"][0] if "programs" in manifest else manifest
    if destination not in ("source", "pyopencl") and row["language"] != "c":
        row = {**row, **row["bodies"]["c"]}
    file = copy / row["source"]
    data = bytearray(file.read_bytes())
    if silently:
        data = another(data.decode()).encode()
        manifest["files"][row["source"]]["sha256"] = hashlib.sha256(data).hexdigest()
        if built := manifest.get("library", {}).get("file"):
            (copy / built).unlink(missing_ok=True)
            manifest["files"].pop(built, None)
        (copy / "manifest.json").write_text(json.dumps(manifest))
    else:
        data[-2] ^= 1
    file.write_bytes(data)
    return copy


def own_test(folder):
    """What the folder's program in C says of itself, and its exit status."""
    manifest = json.loads((folder / "manifest.json").read_text())
    stem = manifest["c"]["function"]
    with tempfile.TemporaryDirectory() as made:
        build = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", folder / "selftest.c", folder / f"{stem}.c"]
        code, said = run(build, "-o", f"{made}/selftest", "-lm", "-ldl", "-lpthread")
        return (code, said) if code else run([f"{made}/selftest"])


def tested(folder, destination, command):
    """The row of one folder in one environment: the self-test passes, and fails for another byte of the kernel."""
    began = time.perf_counter()
    code, said = run(command, folder / "selftest.py", destination)
    took = round(time.perf_counter() - began, 2)
    good = code == 0 and said.startswith(f"selftest ok {destination}")
    told = {}
    for silently in (False, True):
        with tempfile.TemporaryDirectory() as other:
            copy = changed(folder, destination, Path(other), silently)
            wrong, why = run(command, copy / "selftest.py", destination)
            told["results" if silently else "digest"] = why.splitlines()[0][:200]
            good &= wrong == 1 and why.startswith("selftest failed")
            if destination == "c" and silently:
                passed, wrong = own_test(folder), own_test(copy)
                good &= passed[0] == 0 and passed[1].startswith("selftest ok") and wrong[0] == 1
                told["its own program"] = wrong[1].splitlines()[0][:200]
    nbytes = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
    return {"ok": good, "seconds": took, "bytes": nbytes, "said": said[-600:], "a changed byte": told}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", default=",".join(PACKAGES))
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--environments", type=Path, help="where environments are kept between runs")
    parser.add_argument("--have", action="append", default=[], metavar="DEST=DIR")
    parser.add_argument("--install", action="append", default=[], metavar="DEST=PACKAGES")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    to, have, about = args.to.split(","), dict(pair.split("=", 1) for pair in args.have), environment_here()
    packages = {name: [] for name in to}
    for name, _, words in (pair.partition("=") for pair in args.install):
        packages[name].append([] if words == "newest" else words.split())
    rows, versions = [], {}

    def note(kernel, destination, **row):
        rows.append({"kernel": kernel, "destination": destination, **row})
        words = row.get("refused") or f"{'ok' if row['ok'] else 'WRONG'} {row['said'].splitlines()[0]}"
        print(f"{kernel:18} {row.get('environment', destination):12} {words:.100}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folders = {}
        for name in args.kernels.split(","):
            folder, targets, refused = write(name, Path(scratch, "made", name), list(to))
            folders[name] = (folder, targets)
            for destination, why in refused.items():
                note(name, destination, refused=why)
        for destination, words in [(name, words) for name in to for words in packages[name] or [[]]]:
            place, command = environment(destination, args.environments or Path(scratch, "environments"), have, words)
            versions[place.name] = run(command, "-c", VERSIONS)[1].splitlines()
            if run(command, "-c", "import tensorir")[0] == 0:
                raise SystemExit(f"{place.name}: tensorir is in its environment")
            mine = {name: folder for name, (folder, targets) in folders.items() if destination in targets}
            for name, folder in mine.items():
                note(name, destination, environment=place.name, **tested(folder, destination, command))
            three = list(mine.values())[:3]
            if len(three) == 3:
                code, said = run(command, "-c", THREE, destination, *three)
                note("three in a process", destination, environment=place.name, ok=code == 0, said=said[-600:])
    if args.output:
        about |= {"python": platform.python_version(), "numpy": np.__version__, "installed": versions, "ended": now()}
        args.output.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if all(row.get("ok", True) for row in rows) else 1)


if __name__ == "__main__":
    main()
