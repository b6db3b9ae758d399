"""Convolutions as the declared computation is walked: other axes of its sums, its image and its filter in other orders.

Each is one ``reindex`` of what ``nn.conv2d`` declares, so that a schedule's trace replays on the declaration and its
checks compare with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorir.engines.blocks import joint
from tensorir.engines.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


def sums_axes(shape: Conv) -> str:
    """The left side of a view of the sums "y": their axes as ``nn.conv2d`` declares them."""
    return "n, k, p, q | c, r, s" if shape.nchw else "n, p, q, k | r, s, c"


def weight_axes(shape: Conv) -> str:
    """Likewise of the sums "dw" that ``nn.conv2d_backward_weight`` declares."""
    return "k, c, r, s | n, p, q" if shape.nchw else "k, r, s, c | n, p, q"


def image_of(shape: Conv) -> str:
    """The tensor that the taps read."""
    return "x_pad" if shape.pad else "x"


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


def turn_filters(s: BaseSchedule, shape: Conv, channels: int) -> None:
    """The turned filters by a kernel of their own, once where they are constants: as they are stored, a row of channels
    may be in as many pieces as there are taps, which every block would gather again.

    channels: how many of the innermost axes count channels
    """
    loops = list(s.loops("w_packed"))
    rows, lane = s.split(joint(s, loops[-channels:]), [None, 128])
    s.reorder(rows, lane, *loops[:-channels])
    s.bind(rows, "block.x").bind(lane, "thread.x")
    if shape.prepack:
        s.run_once("w_packed")
