"""Draw docs/pictures/kernel.svg: a schedule next to the kernel that is emitted for it, alike colours for alike things.

python docs/picture.py

Both texts are real: the left one is executed, the right one is what ``source()`` gives then. A step and the lines that
it is the reason of have the same number.
"""

import re
from html import escape
from pathlib import Path

import tensorir as tir

OUT = Path(__file__).parent / "pictures" / "kernel.svg"

DECLARED = """\
A = tir.placeholder((1024, 1024), name="A")
B = tir.placeholder((1024, 1024), name="B")
k = tir.reduce_axis(1024, name="k")
C = tir.compute((1024, 1024), lambda i, j:
        tir.sum(A[i, k] * B[k, j], axis=k), name="C")
s = tir.Schedule(C, target="cuda")"""

STEPS = [  # the call, and the lines of the kernel that it is the reason of
    ('i0, i1 = s.split("C.i", [None, 16])', None),
    ('j0, j1 = s.split("C.j", [None, 16])', None),
    ('k0, k1 = s.split("C.k", [None, 16])', r"for \(int k_[01]"),
    ("s.reorder(i0, j0, i1, j1, k0, k1)", None),
    ('s.bind(i0, "block.y").bind(j0, "block.x")', "= blockIdx"),
    ('s.bind(i1, "thread.y").bind(j1, "thread.x")', "= threadIdx"),
    ('s.stage_out(C, at=j1, scope="register")', r"float C_register|C_register\[0\] =|= C_register|^C_register"),
    ('s.stage_in(A, at=k0, scope="shared")', r"__shared__ float A|^A_shared\["),
    ('s.stage_in(B, at=k0, scope="shared")', r"__shared__ float B|^B_shared\["),
    ("s.unroll(k1)", "#pragma unroll"),
]
DERIVED = [
    ("barriers, checked for races", "__syncthreads"),
    ("addresses, out of the loops", "_at = "),
]
"""Lines of no step: they follow from the others."""

SIZE, LINE, WIDE = 12, 17, 7.25
"""Pixels of the letters, from line to line, and of a character at its widest."""

HUES = [210, 150, 35, 275, 0, 320, 90, 185, 60]
STYLE = f"""
text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328;
  white-space: pre }}
.card {{ fill: #f6f8fa; stroke: #d0d7de }}
.title {{ font: 600 13px system-ui, "DejaVu Sans", sans-serif; fill: #59636e }}
.badge {{ font: 600 9px system-ui, "DejaVu Sans", sans-serif; text-anchor: middle; fill: #fff }}
.arrow {{ stroke: #59636e; stroke-width: 2; fill: none }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }} .card {{ fill: #151b23; stroke: #3d444d }} .title {{ fill: #9198a1 }}
  .arrow {{ stroke: #9198a1 }} .badge {{ fill: #fff }} .band {{ fill-opacity: 0.3 }}
}}
"""


def kernel() -> list[str]:
    """Execute the schedule; the lines of its CUDA kernel, without the comments in front."""
    names: dict[str, object] = {"tir": tir}
    exec("\n".join([DECLARED, *(call for call, _ in STEPS)]), names)
    schedule = names["s"]
    assert isinstance(schedule, tir.Schedule)
    text = str(schedule.source())
    return text[text.index('extern "C"') :].rstrip().splitlines()


def numbers() -> dict[str, int]:
    """Patterns of the kernel's lines -> the number of the step; those of no step have the next one."""
    told = [p for _, p in STEPS if p] + [p for _, p in DERIVED]
    return {pattern: n for n, pattern in enumerate(told, 1)}


def band(x: float, y: float, width: float, number: int) -> str:
    """The coloured ground of a line, with its number at the right."""
    hue = HUES[(number - 1) % len(HUES)]
    right = x + width - 10
    return (
        f'<rect class="band" x="{x}" y="{y - SIZE - 1}" width="{width}" height="{LINE}" fill="hsl({hue},75%,50%)" '
        f'fill-opacity="0.16"/><circle cx="{right}" cy="{y - 4.5}" r="6.5" fill="hsl({hue},60%,42%)"/>'
        f'<text class="badge" x="{right}" y="{y - 1.2}">{number}</text>'
    )


def card(x: float, y: float, width: float, title: str, lines: list[tuple[str, int | None]]) -> tuple[list[str], float]:
    """A titled block of code whose lines may have numbers; its elements and its lower end."""
    height = LINE * len(lines) + 20
    out = [f'<text class="title" x="{x + 2}" y="{y - 7}">{escape(title)}</text>']
    out.append(f'<rect class="card" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
    for n, (line, number) in enumerate(lines):
        at = y + 22 + n * LINE
        if number is not None:
            out.append(band(x + 1, at, width - 2, number))
        out.append(f'<text x="{x + 10}" y="{at}" xml:space="preserve">{escape(line)}</text>')
    return out, y + height


def drawing() -> str:
    """The SVG document."""
    of = numbers()
    text = kernel()
    steps: list[tuple[str, int | None]] = [(call, of[p] if p else None) for call, p in STEPS]
    found: list[tuple[str, int | None]] = []
    for line in text:
        hits = [n for pattern, n in of.items() if re.search(pattern, line.strip())]
        found.append((line, hits[0] if hits else None))
    derived = [(what, of[p]) for what, p in DERIVED]
    left = WIDE * max(len(line) for line in [*DECLARED.splitlines(), *(c for c, _ in STEPS)]) + 44
    right = WIDE * max(map(len, text)) + 44
    gap = 46
    plain: list[tuple[str, int | None]] = [(line, None) for line in DECLARED.splitlines()]
    parts, low = card(1, 24, left, "declare", plain)
    more, low = card(1, low + 32, left, "schedule", steps)
    parts += more
    more, low = card(1, low + 32, left, "derived: no step needed", list(derived))
    parts += more
    more, end = card(1 + left + gap, 24, right, "s.source(): the CUDA kernel", found)
    parts += more
    middle = 1 + left + gap / 2
    parts.append(f'<path class="arrow" d="M{middle - 15} 200h28m-8 -7l8 7l-8 7"/>')
    width, height = 2 + left + gap + right, max(low, end) + 2
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    about = "<title>A matrix product in lambdas, ten schedule steps, and the CUDA kernel that they give</title>"
    return "\n".join([head, about, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    OUT.write_text(drawing(), encoding="utf-8")
    print(f"{OUT}: {OUT.stat().st_size} bytes")
