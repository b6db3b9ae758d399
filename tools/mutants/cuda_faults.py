"""Faults that someone may plant in a CUDA text, its launches and its tensor maps, and where each can be.

Nothing here knows the kernels: a fault is found by the names and forms that all texts share. What changes the order in
which threads meet, and places, comes from ``cuda_texts``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cuda_hopper_texts import calls
from cuda_texts import body_of, edits

from tensorir.check.detection import parts
from tensorir.codegen.source import KernelLaunch, Source

_BFLOAT16 = "__uint_as_float((__float_as_uint({0}) + 0x8000u) & 0xffff0000u)"
_HALF = "__half2float(__float2half_rn({0}))"
_TF32 = "__uint_as_float((__float_as_uint({0}) + 0x1000u) & 0xffffe000u)"
_ROUNDED = {"to bfloat16": _BFLOAT16, "to 11 digits": _TF32}
_MODIFIERS = "sync|aligned|rn|rna|satfinite|relaxed|release|trans|cluster|cta|noinc|x4"
_LANE = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))"
_STARTS = ("1e-3f", "-1e-20f", "1.0f", "-0.0f")
AT_ONE_PLACE = ", at one place"
_AT_A_STATEMENT = re.compile(r"(?m)^  (?=for \(|if \(|__syncthreads|\w[^{}\n]*;\n)")


@dataclass(frozen=True)
class Fault:
    """One planted fault: the text with it, or the launches.

    group: scalars, index tables, … ;  kind: what was done
    edit:  which of ``cuda_texts.edits`` it is, -1 where it is none of those
    """

    group: str
    kind: str
    source: Source
    edit: int = -1

    def place(self, old: Source) -> str:
        """The first line that differs, as it was and as it is."""
        if self.source.text == old.text:
            pairs = zip(old.kernels, self.source.kernels, strict=True)
            return next(_differs(a, b) for a, b in pairs if a != b)
        mine, theirs = old.text.splitlines(), self.source.text.splitlines()
        n = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
        ends = [" ".join(x[n].split())[:160] if n < len(x) else "" for x in (mine, theirs)]
        return f"line {n + 1}: {ends[0]} -> {ends[1]}"


def _differs(a: KernelLaunch, b: KernelLaunch) -> str:
    for name in ("grid", "block", "shared_bytes", "args", "cluster"):
        if getattr(a, name) != getattr(b, name):
            return f"{name} of {a.name}: {getattr(a, name)} -> {getattr(b, name)}"
    old, new = next((x, y) for x, y in zip(a.maps, b.maps, strict=True) if x != y)
    return f"map {old.name}: " + ", ".join(
        f"{n} {getattr(old, n)} -> {v}" for n, v in vars(new).items() if v != getattr(old, n)
    )


def faults(source: Source, slots: int) -> Iterator[Fault]:
    """Every fault that there is a place for in a source."""
    made: tuple[tuple[str, Callable[[Source], Iterator[tuple[str, str]]]], ...] = (
        ("scalars", _scalars), ("index tables", _tables), ("sizes", _sizes), ("launch bounds", _bounds),
        ("registers", _registers), ("assembly", _assembly), ("precision", _precision), ("alignment", _alignment),
        ("start values", _starts), ("functions", _functions), ("numbers", _numbers),
        ("special numbers", _specials), ("shuffles", _shuffles), ("branches", _branches),
        ("ways to tell", _ways_to_tell),
    )  # fmt: skip
    for group, planter in made:
        for kind, text in planter(source):
            if text != source.text:
                yield Fault(group, kind, replace(source, text=text))
    for kind, other in _launches(source):
        yield Fault("launches", kind, other)
    for kind, other in _maps(source):
        yield Fault("tensor maps", kind, other)
    for n, e in enumerate(edits(source.text, slots)):
        if (text := e.of(source.text)) != source.text:
            yield Fault("order, places, conditions", e.kind, replace(source, text=text), n)


def _each(text: str, pattern: str, new: str, start: int = 0, end: int | None = None) -> Iterator[str]:
    """The text with one match replaced, for each match."""
    for m in re.compile(pattern).finditer(text, start, len(text) if end is None else end):
        yield text[: m.start()] + m.expand(new) + text[m.end() :]


def _all(text: str, pattern: str, new: str | Callable[[re.Match[str]], str], start: int, end: int) -> str:
    return text[:start] + re.sub(pattern, new, text[start:end]) + text[end:]


def _bodies(text: str) -> tuple[int, int]:
    """From the body of the first kernel to the end."""
    return body_of(text)[0], len(text)


# --- what is planted in texts


def _scalars(source: Source) -> Iterator[tuple[str, str]]:
    text, names = source.text, [p.name for p in source.params if p.role == "scalar"]
    start, end = _bodies(text)
    if len(names) > 1:
        turned = dict(zip(names, names[1:] + names[:1], strict=True))
        yield "exchanged", _all(text, rf"\b({'|'.join(names)})\b", lambda m: turned[m[1]], start, end)
    for name in names:
        forms = {
            "fabsf": "fabsf({0})", "-fabsf": "-fabsf({0})", "negative": "-{0}", "one": "1.0f",
            "whole": "(float)(int){0}", "limited": "fminf({0}, 100.0f)",
            "square root of its square": "sqrtf({0} * {0})", **_ROUNDED,
            "another one for 0": "({0} == 0.0f ? 1.0f : {0})", "another one for 1": "({0} == 1.0f ? 1.5f : {0})",
            "a small one is 0": "(fabsf({0}) < 1e-3f ? 0.0f : {0})",
        }  # fmt: skip
        for kind, form in forms.items():
            yield f"{kind}", _all(text, rf"\b{name}\b", form.format(name), start, end)
        for other in names:
            if other != name:
                for one in _each(text, rf"\b{name}\b", other, start, end):
                    yield "the other one", one
        for one in _each(text, rf"\b{name} \* ", "", start, end):
            yield "left out", one


def _tables(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, end = _bodies(text)
    for p in _index_tables(source):
        for kind, (pattern, new) in _table_forms(p).items():
            if "bound" not in kind:
                yield kind, _all(text, pattern, new, start, end)
            for one in _each(text, pattern, new, start, end):
                yield kind if "bound" in kind else f"{kind}{AT_ONE_PLACE}", one
        for m in re.compile(rf"{p}\[[^\[\]]+\] < (\d+)").finditer(text, start):
            for by in (1, -1):
                yield "upper bound by one", text[: m.start(1)] + str(int(m[1]) + by) + text[m.end(1) :]


def _index_tables(source: Source) -> list[str]:
    whole = [p.name for p in source.params if p.role == "input" and p.dtype.startswith(("int", "uint"))]
    return [name for name in whole if re.search(rf"0 <= {name}\[", source.text)]


def _table_forms(name: str) -> dict[str, tuple[str, str]]:
    """What is planted where an entry of a table is read or compared: patterns, and what takes their place."""
    at = rf"\b{name}\[([^\[\]]+)\]"
    entries = {
        "the first entry": f"{name}[0]", "the next entry": rf"{name}[\1 + 1]", "one more": rf"({name}[\1] + 1)",
        "one less": rf"({name}[\1] - 1)", "never negative": rf"abs({name}[\1])",
        "at most 1": rf"min({name}[\1], 1)", "its last bit": rf"({name}[\1] & 1)",
    }  # fmt: skip
    return {kind: (at, new) for kind, new in entries.items()} | {
        "lower bound left out": (rf"0 <= {name}\[[^\[\]]+\]", "true"),
        "lower bound less": (rf"0 <= ({name}\[[^\[\]]+\])", r"-1 <= \1"),
        "upper bound left out": (rf"{name}\[[^\[\]]+\] < \d+", "true"),
    }


def compared_tables(fault: Fault, old: Source) -> str:
    """The text as it was, in which ``tir_same`` tells where what was planted in a table has another value: a comparison
    where that is all that differs, else each entry. "" where neither is.
    """
    text, new = old.text, fault.source.text
    start, end = _bodies(text)
    kind = fault.kind.removesuffix(AT_ONE_PLACE)
    for name in _index_tables(old):
        for m in re.compile(rf"0 <= {name}\[[^\[\]]+\]|{name}\[[^\[\]]+\] < \d+").finditer(text, start):
            behind = m.end() - len(text)
            if text[: m.start()] == new[: m.start()] and text[behind:] == new[behind:]:
                return f"{text[: m.start()]}tir_same({m[0]}, {new[m.start() : behind]}){text[behind:]}"
        if (form := _table_forms(name).get(kind)) is not None:
            text = _all(text, form[0], lambda m, new=form[1]: f"tir_same({m[0]}, {m.expand(new)})", start, end)
    return text if text != old.text else ""


def _sizes(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, _ = _bodies(text)
    for m in re.compile(r"__shared__ [^;]*?(\[(\d+)\]);").finditer(text, start):
        for kind, new in {"half": int(m[2]) // 2, "of one element less": int(m[2]) - 1}.items():
            yield f"shared array {kind}", text[: m.start(1)] + f"[{new}]" + text[m.end(1) :]
        yield "shared array beyond the launch", text[: m.start(1)] + f"[{m[2]} * 64 + 61440]" + text[m.end(1) :]
    for m in re.compile(r"^\s+(?:__align__\(\d+\) )?(?!return|const)[\w ]+ \w+(\[(\d+)\]);", re.M).finditer(
        text, start
    ):
        if "__shared__" not in m[0]:
            yield "own array of one element less", text[: m.start(1)] + f"[{int(m[2]) - 1}]" + text[m.end(1) :]
    for m in re.compile(r"TIR_SHARED\((\w+), (\d+)\)").finditer(text, start):
        for kind, new in {"more": f"{m[2]} + 1024 * 90", "much more": "1024 * 160", "less": f"{m[2]} / 2",
                          "a little less": f"{m[2]} - 128"}.items():  # fmt: skip
            yield f"section with {kind}", text[: m.start(2)] + new + text[m.end(2) :]
    for m in re.compile(r"\(tir_shared \+ (\d+)\)").finditer(text, start):
        for kind, new in {"behind the section": f"{m[1]} + 65536", "by an expression": f"{m[1]} - 16 * 64"}.items():
            yield f"array {kind}", text[: m.start(1)] + new + text[m.end(1) :]


def _bounds(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    for m in re.finditer(r"__launch_bounds__\((\d+)(?:, (\d+))?\)", text):
        n = int(m[1])
        for kind, new in {
            "half of the threads": f"__launch_bounds__({n} / 2, 1)", "fewer threads": f"__launch_bounds__({n} - 1)",
            "two blocks": f"__launch_bounds__({n}, 2)",
            "two blocks, by an expression": f"__launch_bounds__({n}, 8 / 4)",
            "more threads": f"__launch_bounds__({2 * n if n < 512 else 1024}, 1)", "none": "",
        }.items():  # fmt: skip
            yield kind, text[: m.start()] + new + text[m.end() :]
    for m in re.finditer(r"__cluster_dims__\((\d+)([^)]*)\)", text):
        for kind, new in {"no cluster": "", "a larger cluster": f"__cluster_dims__({2 * int(m[1])}{m[2]})",
                          "a cluster of one": f"__cluster_dims__(1{m[2]})"}.items():  # fmt: skip
            yield kind, text[: m.start()] + new + text[m.end() :]


def _registers(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, _ = _bodies(text)
    for m in re.compile(r" *tir_registers_(up|down)<(\d+)>\(\);\n").finditer(text, start):
        n, left, right = int(m[2]), text[: m.start(2)], text[m.end(2) :]
        yield f"{m[1]} dropped", text[: m.start()] + text[m.end() :]
        for new in (n + 8, n - 8, n + 24, n + 4, 264, 16):
            yield f"{m[1]}, another number", f"{left}{new}{right}"
        yield f"{m[1]} by the other way", text[: m.start(1)] + {"up": "down", "down": "up"}[m[1]] + text[m.end(1) :]


def _assembly(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    for part in parts(text):
        at = text.index(part.text)
        for kind, pattern, new in (
            ("operands exchanged", r"(%\d+)(, )(%\d+)", r"\3\2\1"), ("another operand", r"%1\b", "%0"),
            ("inputs exchanged", r'("\w+"\([^()]+(?:\([^()]*\))?\)), ("\w+"\([^()]+\))', r"\2, \1"),
            ("another flag", r"(?<=, )1(?=[,;])", "0"), ("another flag", r"(?<=, )0(?=[,;])", "1"),
            ("without a modifier", rf"\.(?:{_MODIFIERS})\b", ""),
            ("another type", r"\.bf16\b", ".f16"), ("another type", r"\.f16\b", ".bf16"),
            ("another type", r"\.s8\b", ".u8"), ("another kind", r"e4m3", "e5m2"),
            ("another constant", r"0x[0-9a-f]+", "0x3"), ("sums that are not read", r'"\+', '"='),
            ("another branch", r"#ifndef TIR_EMULATED", "#ifdef TIR_EMULATED"),
            ("a statement dropped", r"(?m)^  asm[^;]*?(?:\n[^;]*?)*;", "  ;"),
            ("bool turned", r"there \? (\w+) : (\w+)", r"there ? \2 : \1"),
            ("a barrier that nobody waits at", r"bar\.sync", "bar.arrive"),
            ("a wait that gives up", r"@p bra", "@!p bra"),
            ("a shift by one more", r"<< (\d+)", r"<< 1\1"),
        ):  # fmt: skip
            for one in _each(part.text, pattern, new):
                if one != part.text:
                    yield kind, text[:at] + one + text[at + len(part.text) :]
    yield from _among_statements(
        text,
        {
            "assembly among statements": '#ifndef TIR_EMULATED\n  asm volatile("bar.sync 1;");\n#endif\n',
            "a branch for devices": "#ifdef __CUDA_ARCH__\n  if (threadIdx.x == 1) return;\n#endif\n",
            "a branch for architectures": "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n  return;\n#endif\n",
            "a branch for the emulator": "#ifdef TIR_EMULATED\n  if (false)\n#endif\n  return;\n",
            "a branch for compilers": "#ifdef __GNUC__\n  if (false)\n#endif\n  if (threadIdx.x == 1) return;\n",
        },
    )
    decided = {"a branch that the text seems to decide": "#ifndef TIR_EMULATED\n  return;\n#endif\n"}
    yield from _among_statements(text + "#define TIR_EMULATED 1\n", decided)


def _among_statements(text: str, lines: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Lines in front of the first statement of a kernel."""
    if at := _AT_A_STATEMENT.search(text, _bodies(text)[0]):
        for kind, new in lines.items():
            yield kind, text[: at.start()] + new + text[at.start() :]


def _precision(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, _ = _bodies(text)
    yield "tf32 for 3xtf32", _fewer_products(text)
    for kind, form in {"sums of bfloat16": _BFLOAT16, "sums of half": _HALF, "sums of tf32": _TF32}.items():
        for m in re.compile(r"(?m)^( *)((?:c|\w*_rf|sum|y)\w*\[[^\]\n]*\]) \+= (.*);$").finditer(text, start):
            new = f"{m[1]}{m[2]} = {form.format(f'({m[2]} + {m[3]})')};"
            yield kind, text[: m.start()] + new + text[m.end() :]
        for m in re.compile(r"(?m)(?<= = )((?:alpha \* )?c\w*\[[^\[\]\n]*\])(?=;| \+|\))").finditer(text, start):
            yield f"result as {kind[8:]}", text[: m.start()] + form.format(m[1]) + text[m.end() :]
    for kind, pattern, new in (
        ("bits cut off", r"\+ 0x7fffu \+ \(\(\w+ >> 16\) & 1u\)", ""),
        ("halves up", r"0x7fffu \+ \(\(\w+ >> 16\) & 1u\)", "0x8000u"),
        ("rounded to zero", r"__float2half_rn", "__float2half_rz"),
    ):  # fmt: skip
        if re.search(pattern, text):
            yield kind, re.sub(pattern, new, text)
    for p in source.params:
        if p.role == "input" and p.dtype == "float32":
            for m in re.compile(rf"(?<![*&\w]){p.name}\[[^\[\]\n]+\]").finditer(text, start):
                yield "an operand rounded", text[: m.start()] + _BFLOAT16.format(m[0]) + text[m.end() :]


def _fewer_products(text: str) -> str:
    """One product of tf32 where there are three: the text of the function as it is in a kernel of those."""
    from tensorir.codegen.instructions import guarded
    from tensorir.intrin.intrin import INTRINSICS, intrinsic

    intrinsic("mma.m16n8k8.tf32.nn")
    brought = next(guarded(x.prelude["cuda"]) for x in INTRINSICS.values()
                   if "tir_mma_m16n8k8_tf32(" in x.prelude.get("cuda", "") and "3x" not in x.name)  # fmt: skip
    return brought + "\n" + re.sub(r"(\n +)tir_mma_m16n8k8_3xtf32\(", r"\1tir_mma_m16n8k8_tf32(", text)


def _alignment(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, _ = _bodies(text)
    for m in re.compile(r"__align__\((\d+)\) (?=[^;(]*\[)").finditer(text, start):
        yield "not said", text[: m.start()] + text[m.end() :]
        if int(m[1]) > 4:
            yield "half", text[: m.start(1)] + str(int(m[1]) // 2) + text[m.end(1) :]
    wide = r"\*\((const )?((?:float|int|uint|double)[24]) \*\)\((\w+) \+ "
    for one in _each(text, wide, r"*(\1\2 *)(\3 + 1 + ", start):
        yield "one element further", one
    for m in re.compile(r"\(tir_shared \+ (\d+)\)").finditer(text, start):
        for by in (4, 8, 64):
            yield "placed elsewhere", text[: m.start(1)] + str(int(m[1]) + by) + text[m.end(1) :]


def _starts(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, end = _bodies(text)
    for new in _STARTS:
        for one in _each(text, r"(?m)^( *\w+(?:\[[^\]\n]*\])? = )0\.0f;", rf"\g<1>{new};", start, end):
            yield f"{new}", one
    for one in _each(text, r"(?m)^( *(?!const|int)\w+\[[^\]\n]*\] = )0;", r"\g<1>1;", start, end):
        yield "1", one
    for one in _each(text, r"= -INFINITY;|= __int_as_float\(0xff800000\);", "= -100.0f;", start, end):
        yield "-100 for -inf", one
    for one in _each(text, r"(?m)^ *\w+\[[^\]\n]*\] = 0(?:\.0f)?;\n", "", start, end):
        yield "none", one
    for *_, adds in (a for a in calls(text, r"tir_wgmma_m64\w+", start, end) if len(a) == 4):
        for new in ("1", "0", "!({0})", "1 < ({0})"):
            given = text[slice(*adds)]
            yield "another beginning of a sum", text[: adds[0]] + new.format(given) + text[adds[1] :]


def _functions(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    for part in parts(text):
        if part.text.startswith("#ifndef TIR_EMULATED") and "__device__" in part.text:
            for one in re.findall(r"(?ms)^(?:template [^\n]*> )?static __device__ .*?\n\}\n", part.text):
                yield "left out", text.replace(one, "", 1)
    start, end = _bodies(text)
    for old, new in (("tir_ldmatrix_x4", "tir_ldmatrix_x4_trans"), ("tir_ldmatrix_x4_trans", "tir_ldmatrix_x4"),
                     ("tir_stmatrix_x4", "tir_stmatrix_x4_trans"), ("__syncthreads", "__syncwarp")):  # fmt: skip
        for one in _each(text, rf"\b{old}\(", f"{new}(", start, end):
            yield "another one", one


def _numbers(source: Source) -> Iterator[tuple[str, str]]:
    """What results are made of: terms added, numbers made whole or limited, just before they are stored."""
    text = source.text
    start, end = _bodies(text)
    outputs = {p.name for p in source.params if p.role == "output" and p.dtype == "float32"}
    for m in re.compile(r"(?m)^( *)(\w+)(\[[^;=\n]*\]) (\+?=) ([^;\n]+);$").finditer(text, start):
        if m[2] in outputs and "float4" not in m[5]:
            for kind, form in {
                "a constant added": "({0}) + 1e-3f", "made whole": "(float)(int)({0})", "rounded": "rintf({0})",
                "limited": "fminf({0}, 65504.0f)", "not below -65504": "fmaxf({0}, -65504.0f)",
                "small ones are 0": "(fabsf({0}) < 0.5f ? 0.0f : ({0}))", "another sign": "-({0})",
                "a NaN is 0": "fmaxf({0}, -__int_as_float(0x7f800000))",
            }.items():  # fmt: skip
                yield kind, text[: m.start(5)] + form.format(m[5]) + text[m.end(5) :]
    for one in _each(text, r"(?<=[ (,])(\d\.\d)\d{5,}f", r"\1f", start, end):
        yield "fewer digits of a constant", one


def _specials(source: Source) -> Iterator[tuple[str, str]]:
    """Results and terms that are NaNs, infinities or very small."""
    text = source.text
    start, end = _bodies(text)
    outputs = {p.name for p in source.params if p.role == "output" and p.dtype == "float32"}
    for m in re.compile(r"(?m)^( *)(\w+)(\[[^;=\n]*\]) = ([^;\n]+);$").finditer(text, start):
        if m[2] in outputs and "float4" not in m[4]:
            for kind, form in {
                "a NaN is 0": "(isnan({0}) ? 0.0f : ({0}))", "not finite is 0": "(isfinite({0}) ? ({0}) : 0.0f)",
                "very small is 0": "(fabsf({0}) < 1e-20f ? 0.0f : ({0}))",
            }.items():  # fmt: skip
                yield kind, text[: m.start(4)] + form.format(m[4]) + text[m.end(4) :]
    term = r"(?m)^( *(?:c|\w*_rf|sum|y)\w*\[[^\]\n]*\] \+= )([^;*\n]*) \* ([^;*\n]*);$"
    yield "products with 0 left out", _all(text, term, r"\1(\2 == 0.0f ? 0.0f : \2 * \3);", start, end)
    yield "terms that are not finite left out", _all(text, term, r"\1(isfinite(\2) ? \2 * \3 : 0.0f);", start, end)


def _branches(source: Source) -> Iterator[tuple[str, str]]:
    """Lanes that come to what a warp does together by ways of their own."""
    text = source.text
    start, _ = _bodies(text)
    together = (
        r"(?m)^( *)((?:tir_mma_\w+|tir_ldmatrix\w*|tir_stmatrix\w*|__syncthreads|__syncwarp|tir_wgmma_m\w+)\([^;\n]*;)$"
    )
    for kind, new in {
        "both on one line": r"\1if (LANE & 1) \2 else \2",
        "by a condition in an expression": r"\1{ auto f = [&] { \2 }; LANE & 1 ? f() : f(); }",
        "in two turns": r"\1for (int turn_ = 0; turn_ < 2; ++turn_) if ((LANE & 1) == turn_) \2",
        "without some": r"\1if ((LANE & 31) != 30) \2",
    }.items():  # fmt: skip
        for one in _each(text, together, new.replace("LANE", _LANE), start):
            yield kind, one


def _ways_to_tell(source: Source) -> Iterator[tuple[str, str]]:
    """What a device would do another way, by a name that the emulator or the device lacks."""
    yield from _among_statements(
        source.text,
        {
            "a macro of the host's library": "#ifndef RAND_MAX\n  return;\n#endif\n#define RAND_MAX 1\n",
            "a macro of devices": "#ifdef NULL\n  return;\n#endif\n#ifndef NULL\n#define NULL 0\n#endif\n",
            "behind a comment": "/**/ #ifdef __CUDA_ARCH__\n  return;\n#endif\n",
            "a digraph": "%:ifdef __CUDA_ARCH__\n  return;\n%:endif\n",
            "in two lines": "#if\\\ndef __CUDA_ARCH__\n  return;\n#endif\n",
            "assembly behind quotes": '  const char *s_ = "//"; asm volatile("bar.sync 1;");\n',
            "words put together": "#define J(a, b) a##b\n  J(__sync, threads)();\n",
            "a size": "  if (sizeof(long double) == 8) return;\n",
        },
    )


def _shuffles(source: Source) -> Iterator[tuple[str, str]]:
    text = source.text
    start, end = _bodies(text)
    for one in _each(text, r"__shfl\w*\(0xffffffff", "__shfl_sync(0x0000ffff", start, end):
        yield "half of the lanes", one
    for m in re.compile(r"(__shfl_\w+_sync\([^;\n]*?, )(\d+)(\))").finditer(text, start):
        for new in (int(m[2]) * 2 % 32, int(m[2]) + 1):
            yield "another lane", text[: m.start(2)] + str(new) + text[m.end(2) :]


# --- what is planted in launches


def _launches(source: Source) -> Iterator[tuple[str, Source]]:
    for n, k in enumerate(source.kernels):
        x, y, z = k.grid
        others = {
            "a block less": dict(grid=(x - 1, y, z)), "a row of blocks less": dict(grid=(x, y - 1, z)),
            "half of the threads": dict(block=(max(1, k.block[0] // 2), *k.block[1:])),
            "less shared memory": dict(shared_bytes=k.shared_bytes - 512 * ("TIR_SHARED(tir" in source.text)),
            "grid turned": dict(grid=(y, x, z)),
            "block turned": dict(block=(k.block[1], k.block[0], k.block[2])),
            "arguments exchanged": dict(args=(*k.args[1:2], *k.args[:1], *k.args[2:])),
        }  # fmt: skip
        for kind, fields in others.items():
            made = replace(k, **fields)
            if made != k and min(made.grid) > 0 and made.shared_bytes >= 0:
                yield kind, replace(source, kernels=(*source.kernels[:n], made, *source.kernels[n + 1 :]))


def _maps(source: Source) -> Iterator[tuple[str, Source]]:
    for n, k in enumerate(source.kernels):
        for i, m in enumerate(k.maps):
            others = [("another swizzle", dict(swizzle=s)) for s in (0, 32, 64, 128) if s != m.swizzle]
            for d in range(len(m.shape)):
                grown = tuple(x - (j == d) for j, x in enumerate(m.shape))
                others.append(("an element less", dict(shape=grown)))
            for d in range(len(m.box)):
                others += [("another box", dict(box=tuple(x // (1 + (j == d)) for j, x in enumerate(m.box))))]
            if m.dtype == "tfloat32":
                others.append(("bits cut off", dict(dtype="float32")))
            arrays = [p.name for p in source.params if p.name != m.array and p.role in ("input", "output")]
            others += [("of another array", dict(array=a)) for a in arrays[:1]]
            for kind, fields in others:
                maps = (*k.maps[:i], replace(m, **fields), *k.maps[i + 1 :])
                made = (*source.kernels[:n], replace(k, maps=maps), *source.kernels[n + 1 :])
                yield kind, replace(source, kernels=made)
