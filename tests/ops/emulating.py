"""What the emulator makes of a schedule's text, against the exact result."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.numbers import numpy_dtype


def small_integers(source, seed=0):
    """An array for each input of a program, of small integers: sums of their products are exact."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, p.shape).astype(numpy_dtype(p.dtype)) for p in source.inputs]


def beyond(work, config, template, target):
    """The schedule of a configuration that is right, and kept out of the space as not worth a trial at its shape."""
    s, chosen = tir.Schedule(work.outputs, target), work.templates[template]
    return chosen.function(s, chosen.space_for(s.target).canonical(config)) or s


def any_configuration_is_right(data, work, template, target):
    """Whether the text of a drawn configuration of a template's space is."""
    space = work.templates[template].space_for(tir.Target.parse(target))
    config = space.config(data.draw(st.integers(0, len(space.legal) - 1)))
    return emulated_rightly(work, work.schedule(config, template=template, target=target))


def emulated_rightly(work, s, seed=0, eager=False):
    """Runs the text on small integers; whether the result is exact, with nothing to tell."""
    source = s.emitted()
    arrays = small_integers(source, seed)
    got = emulate(source, arrays, seed=seed, eager=eager)
    assert not got.problems, got.problems
    return np.array_equal(got.outputs[0], work.reference(*arrays).astype(got.outputs[0].dtype))
