"""Prints a Dispatch as standalone Python or C source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tensorir.tune.dispatch import Dispatch, Leaf, Node, Split, is_number

_C_NAMES = re.compile(
    r"(auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    r"restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|"
    r"NULL|strcmp)"
)


def python_text(d: Dispatch, head: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Text of a Python module with ``KERNELS``, ``TUNED`` and ``choose(…)``, which returns ``{"template": …, "config":
    …}``.

    head:  lines for its docstring
    notes: a comment for each tuned shape
    """
    asked, fixed = d.asked, d.fixed
    given = ", ".join([*asked, *(["*"] if fixed else []), *(f"{n}={v!r}" for n, v in fixed.items())])
    lines = ['"""The kernel to run for a shape.', "", *map(_harmless, head), '"""', "", "KERNELS = ("]
    lines += [f"    { ({'template': k.template, 'config': k.config})!r}," for k in d.kernels]
    lines += [")", "", f"# ({', '.join(asked)}): kernel", "TUNED = {"]
    for n, (shape, kernel) in enumerate(zip(d.shapes, d.chosen, strict=True)):
        note = f"  # {_harmless(notes[n])}" if n < len(notes) else ""
        lines.append(f"    {tuple(shape[a] for a in asked)!r}: {kernel},{note}")
    lines += ["}", "", "", f"def choose({given}):"]
    lines.append(
        '    """Template and configuration: of the tuned shape with these parameters, else by a decision tree."""'
    )
    for name, value in fixed.items():
        lines.append(
            f"    if {name} {'is not' if value is None or value is True or value is False else '!='} {value!r}:"
        )
        lines.append(f"        raise ValueError({f'these kernels were tuned for {name}={value!r}'!r})")
    for name, tuned in d.words.items():
        lines.append(f"    if {name} not in {tuned!r}:")
        lines.append(f"        raise ValueError({f'these kernels were tuned for {name} in {tuned!r}'!r})")
    key = f"({', '.join(asked)}{',' * (len(asked) == 1)})"
    lines += [f"    if {key} in TUNED:", f"        return KERNELS[TUNED[{key}]]"]
    lines += list(_python(d.tree, "    "))
    return "\n".join(lines) + "\n" + of_its_folder("choose")


def of_its_folder(name: str) -> str:
    """Text to append to an exported module ``name``: each import then loads the file of the first folder on
    ``sys.path``, even if another folder's module of that name was imported.
    """
    return f"""
# Registered under its bare name it would be imported from every other folder as well.
if __name__ == "{name}":
    import sys

    if getattr(sys.modules.get(__name__), "__spec__", None) is __spec__ is not None:
        __spec__.name = f"{name} of {{__file__}}"
        sys.modules.setdefault(__spec__.name, sys.modules.pop(__name__))
        __name__ = __spec__.name
"""


def _python(node: Node, indent: str) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield f"{indent}return KERNELS[{node.kernel}]"
        return
    yield f"{indent}if {_python_test(node)}:"
    yield from _python(node.yes, indent + "    ")
    yield from _python(node.no, indent)


def _python_test(node: Split) -> str:
    if node.value is None:
        return f"{node.name} is None"
    if isinstance(node.value, bool):
        return node.name if node.value else f"not {node.name}"
    return f"{node.name} {'<=' if is_number(node.value) else '=='} {node.value!r}"


def c_text(d: Dispatch, name: str = "tensorir_choose", head: Sequence[str] = (), of: str = "kernel") -> str:
    """Text of a C99 function from a shape to the number of its kernel; -1 for a string of no tuned shape.

    String parameters are ``char *``, None is NULL.

    of: noun for the numbered things in comments
    """
    kinds = {a: _c_type([s[a] for s in d.shapes]) for a in d.asked}
    given = ", ".join(f"{kinds[a]}{_c_name(a)}" for a in d.asked) or "void"
    fixed = ", ".join(f"{n} {v}" for n, v in d.fixed.items())
    lines = [f"/* The number of the {of} to run for a shape."]
    lines += [f"   {_harmless(h).replace('*/', '* /')}" for h in head]
    lines += [f"   -1 where {' or '.join(map(_c_name, d.words))} is another than in these shapes."] if d.words else []
    lines += [f"   For {_harmless(fixed).replace('*/', '* /')} only."] if fixed else []
    lines += ["*/", "#include <stddef.h>", "#include <string.h>", "", f"int {name}({given}) {{"]
    for shape, kernel in zip(d.shapes, d.chosen, strict=True):
        test = " && ".join(_c_test(a, "==", shape[a]) for a in d.asked) or "1"
        lines.append(f"    if ({test}) return {kernel};")
    for name, tuned in d.words.items():
        known = " || ".join(f"({_c_test(name, '==', word)})" for word in tuned)
        lines.append(f"    if (!({known})) return -1;")
    return "\n".join([*lines, *_c(d.tree, "    "), "}"]) + "\n"


def _c(node: Node, indent: str) -> Iterator[str]:
    if isinstance(node, Leaf):
        yield f"{indent}return {node.kernel};"
        return
    yield f"{indent}if ({_c_test(node.name, '<=' if is_number(node.value) else '==', node.value)}) {{"
    yield from _c(node.yes, indent + "    ")
    yield f"{indent}}}"
    yield from _c(node.no, indent)


def _c_type(values: Sequence[Any]) -> str:
    if any(isinstance(v, str) or v is None for v in values):
        return "const char *"
    return "double " if any(isinstance(v, float) for v in values) else "long long "


def _c_name(name: str) -> str:
    """C identifier for a parameter, avoiding C keywords and non-ASCII letters."""
    plain = name.encode("ascii", "backslashreplace").decode().replace("\\", "_")
    return f"{plain}_" if _C_NAMES.fullmatch(plain) else plain


def _c_test(name: str, how: str, value: Any) -> str:
    name = _c_name(name)
    if value is None:
        return f"{name} == NULL"
    if isinstance(value, str):
        return f"{name} != NULL && strcmp({name}, {_c_string(value)}) == 0"
    return f"{name} {how} {int(value) if isinstance(value, bool) else repr(value)}"


def _c_string(value: str) -> str:
    return (
        '"' + "".join(f"\\{b:03o}" if b < 32 or b > 126 or chr(b) in '"\\?' else chr(b) for b in value.encode()) + '"'
    )


def _harmless(text: str) -> str:
    """``text`` made safe for one line of a comment or docstring."""
    return json.dumps(str(text), ensure_ascii=False)[1:-1].replace('\\"', "'").replace("\\", "/")
