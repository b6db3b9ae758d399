"""Which results are compared on numbers with every digit in use."""

import tensorir as tir
from tensorir.interp.magnitude import is_continuous


def test_rounded_sums_that_decide_or_are_made_whole_are_not_compared():
    a = tir.placeholder((8, 16), "float32", name="a")
    n = tir.placeholder((8,), "int32", name="n")
    k, j = tir.reduce_axis(16, name="k"), tir.reduce_axis(8, name="j")
    sums = tir.compute((8,), lambda i: tir.sum(a[i, k], axis=k), name="sums")

    def says(value, shape=(8,)):
        return is_continuous((tir.compute(shape, value, name="out"),))

    assert not says(lambda i: tir.cast(sums[i], "int8"))
    assert not says(lambda i: tir.round(sums[i] * 4.0) / 4.0)
    assert not says(lambda i: tir.where(sums[i] > 0, 1.0, -1.0))
    assert not says(lambda i: tir.argmax(sums[j] * n[i], axis=j))
    assert not says(lambda i: n[tir.cast(tir.floor(a[i, 0] * 2.0), "int32") % 8])
    assert says(lambda i: tir.max(sums[j] + tir.exp(sums[i]), axis=j))
    assert says(lambda i: tir.where(a[i, 0] > 0, sums[i], 0.0)), "an input decides, as it is"
    assert says(lambda i: tir.argmax(a[i, k], axis=k))
    assert says(lambda i: tir.where(n[i] > i, tir.cast(n[i] // 2, "float32"), sums[i]))
    assert says(lambda i: tir.cast(sums[i], "float16"))
