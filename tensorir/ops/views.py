"""Convolutions as the declared computation is walked: other axes of its sums, its image and its filter in other orders.

Each is one ``reindex`` of what ``nn.conv2d`` declares, so that a schedule's trace replays on the declaration and its
checks compare with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorir.engines.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


def sums_axes(shape: Conv) -> str:
    """The left side of a view of the sums "y": their axes as ``nn.conv2d`` declares them."""
    return "n, k, p, q | c, r, s" if shape.nchw else "n, p, q, k | r, s, c"


def image_stage(s: BaseSchedule, shape: Conv) -> str:
    """The stage that holds what the taps read: the padded image, or a copy of an image without padding."""
    return "x_pad" if shape.pad else s.stage_in("x", at="root", scope="global").name


def reorder_image(s: BaseSchedule, stage: str, shape: Conv, new: Mapping[str, str], name: str | None = None,
                  widen: bool = True, pad: Mapping[str, int] | None = None) -> None:  # fmt: skip
    """Keep an image under ``new`` axes, each said in n, c, h and w, in the type of the sums, or with ``widen=False`` in
    its own.

    pad: new axes with what their extents are multiples of
    ``nn.conv2d`` converts all that it reads to the type of the sums.
    """
    own = [str(loop).split(".", 1)[1] for loop in s.loops(stage)]  # a copy's axes are numbered
    called = dict(zip("nchw" if shape.nchw else "nhwc", own, strict=True))
    said = [f"{axis} = {called[of[0]]}{of[1:]}" for axis, of in new.items()]
    view = f"{', '.join(own)} -> {', '.join(said)}"
    kind = shape.wide if widen else None
    s.reindex(stage, view, pad, writes=", ".join(new), name=name, dtype=kind)
