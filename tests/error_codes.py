"""Codes that the package puts together, for the tests that look codes up in its sources."""

import ast
import re

COMPOSED = {
    "{primitive}.serial": (
        "split",
        "partition",
        "fuse",
        "bind",
        "parallel",
        "vectorize",
        "unroll",
        "annotate",
        "pipeline",
        "reindex",
        "keep-term",
        "reduce-across",
        "skip",
    ),
    "{sort.maker}.lost": ("annotate", "partition", "specialize", "skip", "pipeline"),
    "{primitive}.scheduled": ("compute-at", "reverse-compute-at", "inline", "reverse-inline"),
    "{primitive}.partial-reduction": ("reverse-compute-at",),
    "{primitive}.not-elementwise": ("reverse-compute-at",),
    "{primitive}.whole-axis": ("reverse-compute-at",),
    "{primitive}.guard": ("reverse-compute-at", "stage-in", "stage-out"),
    "{what}.own-buffer": ("set-scope", "layout"),
    "{what}.gone": ("loop", "stage", "tensor"),
    "{what}.unknown": ("loop", "stage", "tensor"),
    "{primitive}.via": ("stage-in", "stage-out"),
    "{primitive}.vector": ("stage-in", "stage-out"),
    "{primitive}.tile-copy": ("stage-in", "stage-out"),
    "{primitive}.room": ("compute-at", "reverse-compute-at", "stage-in", "stage-out", "prefetch"),
    "{primitive}.made-later": ("reverse-compute-at", "reverse-inline"),
    "{primitive}.scattered": ("reverse-compute-at", "stage-out"),
    "tensorize.{code}": ("one-stage", "dialect", "needs", "same-meaning", "tail", "warp", "scope"),
    "race.{place}": ("shared", "global"),
    "conv2d.{name}": ("stride", "pad", "dilation", "groups"),
    "{op}.precision": ("conv2d", "grouped-matmul", "matmul"),
    "intrin.{code}": ("meaning", "text", "fragment"),
}
"""f-strings that make codes, with what fills them in."""


def f_string(node):
    """The text of an f-string, its fields in braces."""
    return "".join(v.value if isinstance(v, ast.Constant) else f"{{{ast.unparse(v.value)}}}" for v in node.values)


def composed(node):
    """The text of an f-string that makes a code; None for any other node."""
    text = f_string(node) if isinstance(node, ast.JoinedStr) else ""
    return text if re.fullmatch(r"[\w{}.-]+\.[\w{}-]+", text) else None


def made_of(text):
    """The codes that an f-string in COMPOSED makes."""
    return [re.sub(r"\{[\w.]+\}", word, text) for word in COMPOSED.get(text, ())]
