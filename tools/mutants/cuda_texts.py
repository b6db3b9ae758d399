"""Small changes of emitted CUDA text: where they can be made, and what each gives.

Nothing here knows the kernels: the text of each is cut into statements by its indentation and into expressions by its
punctuation, and every place to which a kind of change applies is one mutant.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import cuda_hopper_texts as hopper

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_ORDERING = re.compile(r"__syncthreads\(\);|tir_wait_copies<\d+>\(\);|tir_commit_copies\(\);|" + hopper.ORDERING)
_DECLARED = re.compile(r"(__align__\(\d+\) )?(__shared__ )?((un)?signed )?\w+ \w+\[\d+\];|TIR_SHARED\(")
_NAMES = {"__syncthreads": "barrier", "tir_wait_copies": "wait", "tir_commit_copies": "commit", **hopper.NAMES}


@dataclass(frozen=True)
class Edit:
    """One mutant of a text: characters ``start`` to ``end`` become ``new``. ``line`` counts from 1."""

    kind: str
    start: int
    end: int
    new: str

    def of(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def place(self, text: str) -> str:
        """The line, as it was and as it is."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", max(self.start, self.end - 1))
        old, new = text[first:last], text[first : self.start] + self.new + text[self.end : last]
        return f"line {text.count(chr(10), 0, first) + 1}: {_short(old)} -> {_short(new)}"


def _short(text: str) -> str:
    return " ".join(text.split())


@dataclass
class Statement:
    """Lines of the text: a simple statement, or a loop or condition with those inside it."""

    start: int
    end: int
    head: str
    inside: list[Statement] = field(default_factory=list)

    def all(self) -> Iterator[Statement]:
        yield self
        for s in self.inside:
            yield from s.all()


def body_of(text: str) -> tuple[int, int]:
    """Where the (only) kernel's body begins and ends."""
    start = text.index("\n{\n", text.index('extern "C" __global__')) + 3
    return start, text.index("\n}\n", start) + 1


def statements(text: str) -> list[Statement]:
    """The statements of the kernel."""
    start, end = body_of(text)
    lines, at = [], start
    for line in text[start:end].splitlines(keepends=True):
        lines.append((at, line))
        at += len(line)
    found, n = [], 0
    while n < len(lines):
        s, n = _statement(lines, n)
        found.append(s)
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _statement(lines: list[tuple[int, str]], n: int) -> tuple[Statement, int]:
    start = lines[n][0]
    while lines[n][1].lstrip().startswith("#"):
        n += 1
    depth, head = _indent(lines[n][1]), lines[n][1].split("  // ")[0].strip()
    n += 1
    inside = []
    while n < len(lines) and _indent(lines[n][1]) > depth:
        s, n = _statement(lines, n)
        inside.append(s)
    if head.endswith("{") and not lines[n][1].lstrip().startswith("} else"):  # what is else is a statement of its own
        n += 1
    end = lines[n][0] if n < len(lines) else lines[-1][0] + len(lines[-1][1])
    return Statement(start, end, head, inside), n


# --- the kinds of change


def edits(text: str, slots: int) -> list[Edit]:
    """All mutants of a text, in order; texts that differ only in numbers have the same ones."""
    whole = statements(text)
    out = [*_dropped(text, whole), *_moved(text, whole)]
    start, end = body_of(text)
    for m in re.finditer(r"tir_wait_copies<(\d+)>", text[start:end]):
        at = start + m.start(1)
        out.append(Edit("wait for one group less", at, at + len(m[1]), str(int(m[1]) + 1)))
    if slots:
        for m in re.finditer(rf"(\w+|\(\w+ \+ \d+\)) (?=% {slots} \*)", text[start:end]):
            at = start + m.start(1), start + m.end(1)
            out += [Edit("another slot", *at, f"({m[1]} + {by})") for by in range(1, slots)]
    out += _numbers(text, start, end)
    out += _operators(text, start, end)
    out += [Edit(e.kind, e.start, e.end, e.new) for e in hopper.edits(text, start, end)]
    return out


def _dropped(text: str, whole: list[Statement]) -> Iterator[Edit]:
    for s in (x for top in whole for x in top.all()):
        if s.inside or not re.match(r"\*|tir_|__syncthreads|\w+\[", s.head) or s.head.startswith("tir_registers"):
            continue
        what = next((n for start, n in _NAMES.items() if s.head.startswith(start)), "")
        if not what:
            to_shared = re.match(r"(\*\(\w+ \*\)\()?\w*_shared(_\d+)?\b|tir_copy_async", s.head)
            what = "copy" if to_shared or "_next" in s.head.split("=")[0] else "other statement"
        first = text.index(s.head, s.start)
        yield Edit(f"dropped {what}", first, first + len(s.head), ";")


def _moved(text: str, whole: list[Statement]) -> Iterator[Edit]:
    """Barriers, waits and commits that change places with the statement before or behind."""
    for group in [whole, *(s.inside for top in whole for s in top.all())]:
        for one, two in itertools.pairwise(group):
            if (_ORDERING.match(one.head) or _ORDERING.match(two.head)) and not _DECLARED.match(one.head + two.head):
                name = next(
                    n for start, n in _NAMES.items() if one.head.startswith(start) or two.head.startswith(start)
                )
                if two.head.startswith("const ") or one.head.startswith("const "):
                    continue  # values, which nobody else sees
                first, second = text[one.start : one.end], text[two.start : two.end]
                yield Edit(f"moved {name}", one.start, two.end, second + first)


def _numbers(text: str, start: int, end: int) -> Iterator[Edit]:
    """Whole numbers in indices, conditions and loops: one more, one less, or exchanged for the next."""
    at = start
    for line in text[start:end].splitlines(keepends=True):
        code = line.strip()
        if not code.startswith("#") and not any(x.match(code) for x in (_DECLARED, _ORDERING, hopper.CALLS)):
            found = list(_NUMBER.finditer(line))
            for n, m in enumerate(found):
                kind = "index"
                if code.startswith("for"):
                    kind = "bound of a loop"
                elif "<" in part(line, m.start(), m.end()):
                    kind = "bound of a condition"
                for by in (1, -1):
                    yield Edit(f"{kind} by one", at + m.start(), at + m.end(), str(int(m[0]) + by))
                if n + 1 < len(found) and kind == "index":
                    other = found[n + 1]
                    if len(m[0]) != 1 or len(other[0]) != 1 or m[0] != other[0]:
                        between = line[m.end() : other.start()]
                        yield Edit("index, numbers exchanged", at + m.start(), at + other.end(),
                                   other[0] + between + m[0])  # fmt: skip
        at += len(line)


def _operators(text: str, start: int, end: int) -> Iterator[Edit]:
    body = text[start:end]
    for m in re.finditer(r" \^ ", body):
        yield Edit("swizzle with + for ^", start + m.start(), start + m.end(), " + ")
        left, right = _operands(body, m.start(), m.end())
        yield Edit("swizzle without one term", start + m.start(), start + right, "")
        yield Edit("swizzle without one term", start + left, start + m.end(), "")
    for m in re.finditer(r"(?<=\w) < (?=\d)", body):
        yield Edit("<= for <", start + m.start(), start + m.end(), " <= ")
        left, right = _condition(body, m.start(), m.end())
        if not body[body.rfind("\n", 0, m.start()) + 1 :].lstrip().startswith("for"):
            yield Edit("condition left out", start + left, start + right, "true")
    for m in re.finditer(r"(tir_mma_\w+)\(([^,;]+), ([^,;]+), ([^,;]+)\);", body):
        yield Edit("operands exchanged", start + m.start(3), start + m.end(4), f"{m[4]}, {m[3]}")


def _span(text: str, at: int, stops: str, step: int) -> int:
    """Where, from ``at`` on, the first of ``stops`` stands that is in no bracket opened on the way."""
    depth, opens, closes = 0, "([" if step > 0 else ")]", ")]" if step > 0 else "(["
    while True:
        c = text[at]
        if depth == 0 and (c in closes or c in stops):
            return at
        depth += (c in opens) - (c in closes)
        at += step


def _operands(text: str, left: int, right: int) -> tuple[int, int]:
    """The terms around an operator ^: it binds less than + does."""
    return _trimmed(text, _span(text, left - 1, "^,=?:;", -1) + 1, _span(text, right, "^,=?:;", 1))


def _condition(text: str, left: int, right: int) -> tuple[int, int]:
    """The comparison around an operator <."""
    return _trimmed(text, _span(text, left - 1, "&,=?:;", -1) + 1, _span(text, right, "&,=?:;", 1))


def _trimmed(text: str, left: int, right: int) -> tuple[int, int]:
    while text[left] == " ":
        left += 1
    while text[right - 1] == " ":
        right -= 1
    return left, right


def parts(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The expressions around a place, the smallest first: up to an argument, an index or one side of an assignment."""
    start, end = _whole_brackets(text, start, end)
    while True:
        left, right = _span(text, start - 1, "&,=?:;{}\n", -1) + 1, _span(text, end, "&,=?:;{}\n", 1)
        yield _trimmed(text, left, right)
        grouped = text[left - 1] == "(" and text[right] == ")" and re.search(r"[(+*/%^<] ?$", text[: left - 1][-2:])
        if not grouped:
            return
        start, end = left - 1, right + 1


def _whole_brackets(text: str, start: int, end: int) -> tuple[int, int]:
    """The place with both ends of each bracket that is opened or closed inside it."""
    depth = lowest = 0
    for c in text[start:end]:
        depth += (c in "([") - (c in ")]")
        lowest = min(lowest, depth)
    for _ in range(-lowest):
        start = _span(text, start - 1, "", -1)
    for _ in range(depth - lowest):
        end = _span(text, end, "", 1) + 1
    return start, end


def part(text: str, start: int, end: int) -> str:
    """The smallest of them."""
    left, right = next(parts(f";{text};", start + 1, end + 1))
    return f";{text};"[left:right]
