"""Faults planted in exported C programs: which of them the folder's own test tells, in C and in Python.

    python tools/mutants/c_planted.py [-o FILE]

Each fault is a line changed in NAME.c. The manifest's digest is changed with it, so that Python's test has to see the
results. What is planted in a text for narrower registers is for C's test alone: Python's runs what the processor has.
Exit status 1 when C's test lets one pass; races are told by chance, and by the thread sanitizer always.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "export"))
import test_c_program as kernels

AFTER = "  return failed == 2 ? "
OWN = r"/\* --- registers of (?:64|TIR).*?(?=/\* --- registers of 32)"
"""The text that a processor with AVX-512 takes; then those of 32 and 16 bytes."""
HALF, LEAST = r"/\* --- registers of 32.*?(?=/\* --- registers of 16)", r"/\* --- registers of 16.*?(?=/\* Which of)"
ALL = r"/\* --- registers of (?:64|TIR).*?(?=/\* Which of)"
WHOLE = r".*"
BLOCK = "l->run(l->args, block);"
RACE = " (a race, told by chance; the thread sanitizer tells it)"
SPOIL = "((float *)buffers[2])[0] += 1;"

FAULTS = [
    ("product", "a wrong row of the left side", ALL, "a[i * 17 + k]", "a[i * 17 + k / 16]"),
    ("product", "a term of the sum less", ALL, "k < 17", "k < 16"),
    ("product", "minus instead of plus", ALL, "+= a", "-= a"),
    ("product", "sums that begin at 1", ALL, "(0.0f)", "(1.0f)"),
    ("product", "a tail that is a column short", OWN, "j_1_1 < 20", "j_1_1 < 19"),
    ("product", "a tail that is a column long", OWN, "j_1_1 < 20", "j_1_1 < 21"),
    ("product", "zeros for the first element too", ALL, "? b[k * 20", "&& k + ji ? b[k * 20"),
    ("product", f"a panel that blocks share{RACE}", ALL, "  float b_packed", "  static float b_packed"),
    ("product", "a row too few", OWN, "i_1 < 17", "i_1 < 16"),
    ("product", "a block too few", WHOLE, "{2, 1, 1}", "{1, 1, 1}"),
    ("product", "a wrong scale in 32-byte registers", HALF, "+= a", "+= 2 * a"),
    ("product", "a wrong tail in 16-byte registers", LEAST, "j_0 * 4 + out_j_1_1_v < 5", "j_0 * 4 + out_j_1_1_v < 4"),
    ("product", "wrong in the second call", WHOLE, AFTER, f"  static int n; if (++n == 2) {SPOIL}\n{AFTER}"),
    ("product", "wrong in every call but the first", WHOLE, AFTER, f"  static int n; if (n++) {SPOIL}\n{AFTER}"),
    ("product", "wrong at odd addresses", WHOLE, AFTER, f"  if ((uintptr_t)buffers[0] % 64) {SPOIL}\n{AFTER}"),
    ("product", "wrong where the result is not aligned", WHOLE, AFTER,
     f"  if ((uintptr_t)buffers[2] % 8) {SPOIL}\n{AFTER}"),
    ("product", "wrong on other threads", WHOLE, BLOCK,
     "{ static pthread_t first; if (!first) first = pthread_self(); if (first == pthread_self()) " + BLOCK + "}"),
    ("product", "wrong on the caller's threads", WHOLE, "call->parallel_for(call->pool, blocks,",
     "call->parallel_for(call->pool, blocks - 1,"),
    ("product", "wrong without a call", WHOLE, AFTER, f"  if (!call) {SPOIL}\n{AFTER}"),
    ("product", "blocks left out by own threads", WHOLE, "uint32_t n = first;", "uint32_t n = first + (first > 0);"),
    ("product", "an input written", WHOLE, AFTER, f"  ((float *)buffers[0])[0] += 1;\n{AFTER}"),
    ("product", "a byte written beyond the result", WHOLE, AFTER, f"  ((char *)buffers[2])[2640] = 0;\n{AFTER}"),
    ("product", "an error code", WHOLE, "PRODUCT_THREADS : PRODUCT_OK", "PRODUCT_THREADS : PRODUCT_INDEX"),
    ("packed", "weights packed in the first call only", WHOLE, "if (!failed && which & 1)",
     "static int n; if (!failed && which & 1 && !n++)"),
    ("packed", "NAME_pack does nothing", WHOLE, "tir_given(call, buffers, packed, 1)", "0"),
    ("scaled", "a factor less", ALL, "alpha * ", ""),
    ("several", "a narrower type", ALL, "(int32_t)", "(int8_t)"),
    ("several", "outputs exchanged", WHOLE, "buffers[1], buffers[2]}", "buffers[2], buffers[1]}"),
    ("gathered", "indices of fewer bits", ALL, "E[rows[i] * 8", "E[(rows[i] & 31) * 8"),
    ("gathered", "the next row", ALL, "E[rows[i] * 8", "E[(rows[i] + 1) % 50 * 8"),
    ("inexact", "another constant", ALL, "3.0f", "3.0005f"),
    ("inexact", "another column of 16", OWN, "(A + i * 64 + j_0 * 16)", "(A + i * 64 + (j_0 ^ 1) * 16)"),
    ("halves", "a result rounded down", ALL, "  return h;", "  return h & 0xffe0;"),
    ("convolution", "no bias", ALL, "b[", "0 * b["),
]  # fmt: skip


def planted(text, section, old, new):
    """The text with the fault everywhere in the section; as it is where there is no such line."""
    return re.sub(section, lambda m: m[0].replace(old, new), text, count=1, flags=re.DOTALL)


def outcome(folder, words):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()[-300:]


def tried(folder, name, text):
    """(what C's test says, what Python's says) of another text in the folder."""
    (folder / f"{name}.c").write_text(text)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][f"{name}.c"]["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    build = ["cc", "-std=c11", "-O1", "selftest.c", f"{name}.c", "-o", "t", "-lm", "-ldl", "-lpthread"]
    built = outcome(folder, build)
    if built[0]:
        return f"does not compile: {built[1]}", ""
    return outcome(folder, ["./t"]), outcome(folder, [sys.executable, "-I", "selftest.py", "c"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        made = {}
        for n, (name, fault, section, old, new) in enumerate(FAULTS):
            if name not in made:
                made[name] = getattr(kernels, name)().export(Path(scratch, "made", name), to=["c"])
            folder = Path(scratch, str(n), name)
            shutil.copytree(made[name], folder)
            before = (folder / f"{name}.c").read_text()
            text = planted(before, section, old, new)
            if text == before:
                rows.append({"kernel": name, "fault": fault, "c": "not planted", "python": ""})
            else:
                c, python = tried(folder, name, text)
                said = [x if isinstance(x, str) else "told" if x[0] else "SURVIVED" for x in (c, python)]
                rows.append({"kernel": name, "fault": fault, "c": said[0], "python": said[1]})
            print(*rows[-1].values(), sep=" | ", flush=True)
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(row["c"] != "told" and not row["fault"].endswith(RACE) for row in rows))


if __name__ == "__main__":
    main()
