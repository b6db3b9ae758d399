"""A loaded kernel, run and compared with the reference here."""

from __future__ import annotations

import math

from tensorir.api.bench import Runner
from tensorir.api.candidate import Candidate, Refused, quiet
from tensorir.api.expected import Data
from tensorir.api.questions import Output
from tensorir.api.work import Work
from tensorir.interp.magnitude import is_continuous
from tensorir.runtime.device import Device
from tensorir.runtime.launch import Program
from tensorir.tune.inputs import arguments


def computes_right(work: Work, made: Candidate, program: Program, device: Device) -> bool:
    """Whether a program computes what the reference does: on the inputs of trials, and on floats."""
    given, exact = arguments(work.outputs)
    outputs = Output.of(work.outputs)
    data = Data(given, exact, outputs, "", work.reference, continuous=is_continuous(work.outputs))
    try:
        runner = Runner(device, made, data, cache=True, program=program)
        runner.verify(quiet)
        runner.try_floats(math.inf, quiet)
    except Refused:
        return False
    finally:
        data.remove()
    return True
