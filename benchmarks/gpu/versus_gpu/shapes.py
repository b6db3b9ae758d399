"""Facts: shapes of matrix products and convolutional layers. Products are (m, n, k)."""

from __future__ import annotations

SQUARE = (512, 1024, 2048, 4096, 8192)

LLAMA2_7B = ((4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096))
"""(k, n): queries, keys and values together; the attention's output; gate and up together; down."""
LLAMA2_TOKENS = (16, 128, 2048, 8192)

DEEPBENCH = (
    (1760, 16, 1760), (1760, 128, 1760), (1760, 7000, 1760), (2048, 64, 2048), (2560, 64, 2560), (2560, 7000, 2560),
    (4096, 16, 4096), (4096, 128, 4096), (5124, 700, 2048), (35, 700, 2048), (3072, 128, 1024), (7680, 64, 2560),
)  # fmt: skip
"""Some of Baidu's DeepBench."""

BERT_LARGE = ((128, 3072, 1024), (128, 1024, 1024), (128, 4096, 1024), (128, 1024, 4096))
"""At 128 tokens."""

ODD = ((127, 65, 33), (1, 1, 1), (64, 64, 64), (129, 257, 40), (16, 136, 72))
"""Tiles that do not fit, rows that no vector divides, fewer elements than threads."""
ODD_LARGE = (2056, 2064, 592)
"""More tiles than an H100 has multiprocessors, and more along k than a ring has buffers."""
ODD_BATCH = (3, 65, 48, 33)
"""(batch, m, n, k)."""

BATCHES = (1, 16, 64)

VGG16 = (
    (3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56), (256, 512, 28),
    (512, 512, 28), (512, 512, 14),
)  # fmt: skip
"""3x3 layers: channels in and out, rows."""
VGG16_BATCHES = (1, 16)

MOBILENET = (
    (32, 112, 1), (64, 112, 2), (128, 56, 1), (128, 56, 2), (256, 28, 1), (256, 28, 2), (512, 14, 1), (512, 14, 2),
    (1024, 7, 1),
)  # fmt: skip
"""3x3 depthwise layers of MobileNet v1: channels, rows, stride."""

ODD_CONVOLUTIONS = (
    dict(n=2, c=7, h=13, w=11, k=5, r=3, s=3, pad=1),
    dict(n=1, c=3, h=17, w=19, k=6, r=7, s=7, stride=2, pad=3),
    dict(n=3, c=5, h=9, w=9, k=9, r=1, s=1, stride=2),
    dict(n=1, c=4, h=12, w=10, k=8, r=3, s=3, pad=2, dilation=2),
    dict(n=2, c=8, h=10, w=7, k=8, r=3, s=3, pad=1, groups=8),
    dict(n=1, c=6, h=8, w=8, k=4, r=3, s=3, pad=1, groups=2),
    dict(n=2, c=7, h=13, w=11, k=5, r=3, s=3, pad=1, layout="NHWC"),
    dict(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
)

PIECES = ((127, 80, 48), (65, 208, 336), (257, 144, 592), (136, 144, 208))
"""Rows of whole pieces of 16 bytes in every type, as tensor copies want them; the last one also where A is (k, m)."""
DEEP = (72, 136, 1040)
"""Terms enough for parts of the reduction."""
ODD_GROUPS = (456, 208, 144, 3, 128)
"""(rows, n, k, groups, align): the last block of rows is not whole."""
CONVOLUTIONS_OF_PIECES = (
    dict(n=2, c=80, h=13, w=19, k=144, r=3, s=3, pad=1, layout="NHWC"),
    dict(n=1, c=64, h=17, w=11, k=80, r=3, s=3, stride=2, pad=1, layout="NHWC"),
    dict(n=3, c=48, h=9, w=9, k=64, r=1, s=1, layout="NHWC"),
    dict(n=1, c=128, h=12, w=12, k=128, r=3, s=3, pad=1, groups=2, layout="NHWC"),
    dict(n=1, c=64, h=14, w=14, k=64, r=3, s=3, pad=2, dilation=2, layout="NHWC"),
)
"""Channels of whole pieces."""
ODD_WINOGRAD = dict(n=3, c=9, h=13, w=18, k=40, r=3, s=3, pad=1)
MANY_PIXELS = dict(n=4, c=64, h=28, w=28, k=64, r=3, s=3, pad=1, layout="NHWC")
"""Whose gradient of the filter has sums long enough for parts."""

GROUPED = ((4096, 14336, 4096, 8, 128), (4096, 4096, 7168, 32, 128))
"""(rows, n, k, groups, align) of layers of experts: Mixtral 8x7B's first at 2048 tokens with two experts each; many
experts with few rows."""
BATCHED = ((64, 512, 512, 64, True), (64, 512, 64, 512, False), (256, 128, 128, 64, True))
"""(batch, m, n, k, whether B is (n, k)): scores of attention, and what they weigh."""
SKINNY = ((128, 128, 16384), (16, 4096, 14336), (512, 512, 16384), (64, 2048, 8192))
"""Few tiles and long sums."""
WAVES = ((2304, 2304, 4096), (1536, 1536, 8192))
"""A little more than one wave of large tiles on an H100, and a little less than half of one."""
EPILOGUES = (
    ("fp16", (2048, 4096, 1024), dict(bias=True, act="gelu")),
    ("bf16", (2048, 4096, 11008), dict(beta=True)),
    ("bf16", (128, 4096, 1024), dict(bias=True, act="relu")),
    ("fp32", (2048, 1024, 1024), dict(bias=True, act="relu")),
)
"""Layers of perceptrons with what follows their products; ``beta`` adds a residual."""
