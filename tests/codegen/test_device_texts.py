"""Inline assembly is not run by the emulator: what kernels bring along is pinned, word by word."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import device_texts
import pytest

import tensorir
from tensorir.check.detection import not_run, parts
from tensorir.codegen import helpers
from tensorir.intrin.cuda import MULTIPLICATIONS

PACKAGE = Path(tensorir.__file__).parent


def listed(texts: dict[str, str]) -> str:
    return "\n\n".join(f"== {name}\n{text}" for name, text in texts.items())


def test_helpers(golden: Callable[[str, str], None]) -> None:
    golden(listed(device_texts.helpers()), "device/helpers.txt")


def test_instructions(golden: Callable[[str, str], None]) -> None:
    golden(listed(device_texts.instructions()), "device/instructions.txt")


def test_products_of_warpgroups(golden: Callable[[str, str], None]) -> None:
    """One of each kind and order in words, all by their digests."""
    texts = device_texts.products()
    golden(listed({n: t for n, t in texts.items() if "m64n8k" in n}), "device/products.txt")
    digests = [f"{hashlib.sha256(text.encode()).hexdigest()[:24]} {name}" for name, text in texts.items()]
    golden("\n".join(digests), "device/products_digests.txt")


def test_registers_of_products_are_in_order() -> None:
    """By the text alone: so many sums, each once, each where its number is; then the operands; then the flags."""
    for name, text in device_texts.products().items():
        n, k, kind, a, b = re.fullmatch(r"tir_wgmma_m64n(\d+)k(\d+)_(\w+)_([ntr])([nt])", name).groups()
        count, held = int(n) // 2, a == "r"
        first = ",".join(f"%{r}" for r in range(count))
        operand = "{" + ",".join(f"%{count + r}" for r in range(4)) + "}" if held else f"%{count}"
        flags = "" if MULTIPLICATIONS[kind].sums == "int32" else ", 1, 1"
        if MULTIPLICATIONS[kind].word == 2:
            flags += ("" if held else f", {int(a == 't')}") + f", {int(b == 'n')}"
        assert f"m64n{n}k{k}.{'.'.join(MULTIPLICATIONS[kind].ptx.split('.')[:3])} {{{first}}}, {operand}, " in text
        last = count + (4 if held else 1)
        assert f"%{last}, p{flags};" in text and f"setp.ne.b32 p, %{last + 1}, 0;" in text
        assert text.rstrip().endswith('"l"(b), "r"(adds));\n}\n#endif')
        letter = "r" if MULTIPLICATIONS[kind].sums == "int32" else "f"
        assert re.findall(r'"\+(\w)"\(d\[(\d+)\]\)', text) == [(letter, str(r)) for r in range(count)]


def test_a_text_with_no_golden_fails(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch,
                                     request: pytest.FixtureRequest) -> None:  # fmt: skip
    if request.config.getoption("--update-golden"):
        pytest.skip("writes what it must not")
    monkeypatch.setitem(helpers.TEXTS, "tir_new", "#ifndef TIR_EMULATED\nvoid tir_new() {}\n#endif")
    with pytest.raises(pytest.fail.Exception, match="helpers"):
        golden(listed(device_texts.helpers()), "device/helpers.txt")


def test_assembly_stands_where_it_is_pinned() -> None:
    """What another module brings along has to be listed in ``device_texts`` first."""
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
             if re.search(r"\basm(?: volatile)?\(\\?[\"{]", path.read_text(encoding="utf-8"))}  # fmt: skip
    assert found == {"codegen/helpers.py", "codegen/helpers.py", "codegen/whole.py", "intrin/cuda.py",
                     "intrin/hopper.py", "intrin/stmatrix.py"}  # fmt: skip


def test_the_emulator_knows_each_of_them() -> None:
    for texts in (device_texts.helpers(), device_texts.instructions(), device_texts.products()):
        for name, text in texts.items():
            assert not not_run(text), name


def test_the_emulator_names_each_that_is_changed() -> None:
    """One letter in what only a device runs."""
    every = {**device_texts.helpers(), **device_texts.instructions()}
    every |= {n: t for n, t in device_texts.products().items() if "m64n24k" in n}
    changed = 0
    for name, text in every.items():
        for part in parts(text):
            for at in range(0, len(part.text), 7):
                old = part.text[at]
                if old.isalnum() and "#" not in part.text[part.text.rfind("\n", 0, at) + 1 : at]:
                    new = part.text[:at] + ("1" if old != "1" else "2") + part.text[at + 1 :]
                    assert not_run(text.replace(part.text, new)), (name, new)
                    changed += 1
                    break
    assert changed > 60
