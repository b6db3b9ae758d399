"""Views of a convolution for schedules: ``reindex`` steps that reorder its sums, its image and its filter.

Each view is a step on the declaration of ``nn.conv2d``, so that a trace replays on it and checks compare with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorir.engines.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import BaseSchedule


def sums_axes(shape: Conv) -> str:
    """Left side of a ``reindex`` view of the sums "y": their axes as ``nn.conv2d`` declares them."""
    return "n, k, p, q | c, r, s" if shape.nchw else "n, p, q, k | r, s, c"


def image_stage(s: BaseSchedule, shape: Conv) -> str:
    """Name of the stage that holds the image under the taps: the padded image, or a new copy if there is no padding."""
    return "x_pad" if shape.pad else s.stage_in("x", at="root", scope="global").name


def reorder_image(s: BaseSchedule, stage: str, shape: Conv, new: Mapping[str, str], name: str | None = None,
                  widen: bool = True, pad: Mapping[str, int] | None = None) -> None:  # fmt: skip
    """Reindex a stored image to the axes ``new`` (name -> expression in n, c, h, w), in the sums' dtype.

    widen: False to keep the image's own dtype; ``nn.conv2d`` converts what it reads to the sums' dtype
    pad: new axis -> multiple that its extent is rounded up to
    """
    own = [str(loop).split(".", 1)[1] for loop in s.loops(stage)]  # a copy's axes are numbered
    called = dict(zip("nchw" if shape.nchw else "nhwc", own, strict=True))
    said = [f"{axis} = {called[of[0]]}{of[1:]}" for axis, of in new.items()]
    view = f"{', '.join(own)} -> {', '.join(said)}"
    kind = shape.wide if widen else None
    s.reindex(stage, view, pad, writes=", ".join(new), name=name, dtype=kind)
