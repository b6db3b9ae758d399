"""Operators in a few lines each, with schedules for processors; ``docs/gallery.md`` shows them.

Each module has ``OUTPUT``, a declaration; ``schedule()``, how it runs; ``inputs(seed)``; ``by_numpy(*arrays)`` and
``by_torch(*tensors)``, the same by libraries; and ``TOLERANCE`` where sums of floats are compared.
"""

NAMES = (
    "matmul",
    "batched_matmul",
    "layer_norm",
    "softmax",
    "attention",
    "max_pool",
    "depthwise_1d",
    "quantised_linear",
    "masked_dilated",
    "argmax",
    "bilateral",
    "histogram",
    "segment_sum",
    "cumsum",
    "prefix_sum_2d",
    "max_unpool",
)
