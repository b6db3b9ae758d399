"""A schedule checked for OpenCL and, as text on the CPU, for CUDA."""

import tensorir as tir


def checked(outputs, *steps):
    """A schedule whose kernel is that of the definition, on OpenCL and as CUDA text on the CPU."""
    s = tir.Schedule(outputs)
    for step in steps:
        step(s)
    verdict = s.check()
    assert verdict, str(verdict)
    told = tir.replay(s.definition, s.trace, target="cuda -arch=sm_80").check("emulate")
    assert told, str(told)
    return s
