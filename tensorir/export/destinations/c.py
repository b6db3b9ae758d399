"""Destination "c": header, C11 source, and a dependency-free self-test."""

from __future__ import annotations

from tensorir.export.bodies import BODIES
from tensorir.export.c_host import visible
from tensorir.export.c_selftest import cmake, selftest
from tensorir.export.destination import Destination, Made, Shipment


def make(shipment: Shipment) -> Made:
    """Additions for C: files ``selftest.c`` and ``CMakeLists.txt``, the function's names, and the README's section."""
    name, part = shipment.operator.name, shipment.parts["c"]
    source = visible(part.source) if part.hosted else part.source
    why = f"{name}_why" if part.hosted else ""
    files = {
        "selftest.c": selftest(source, name, shipment.evidence(part.max_error), why).encode("utf-8"),
        "CMakeLists.txt": cmake(name).encode("utf-8"),
    }
    entry = {"function": name, "typed": f"{name}_typed", "header": f"{name}.h"}
    about = HOSTED.replace("HOST", BODIES[part.source.language].title) if part.hosted else WIDTHS
    return Made(files, entry, (_USE + about).replace("NAME", name))


_USE = """\
`NAME.h` has one function, `NAME(call, buffers)`, and the same with an argument for each array, `NAME_typed`.

```
cc -std=c11 -O2 selftest.c NAME.c -lm -ldl -lpthread && ./a.out
cmake -B build && cmake --build build && ctest --test-dir build
```
"""
HOSTED = """
`NAME.c` holds the kernels in HOST, finds the driver's library when it runs and launches them: it needs neither headers
nor a library to be compiled. `NAME.h` says what addresses and `tir_call.stream` are. `NAME_load` makes ready what the
first call would; `NAME_why` says in words what an error was."""
WIDTHS = """
`NAME.c` has a text for each width of registers and takes the widest that the processor has, so that it needs no flags.
`tir_call` says on which threads and in which workspace; with NULL the kernel has threads of its own, which sleep
between calls, and memory of its own. Addresses need be multiples of their elements' size only."""

DESTINATION = Destination("c", ("c",), "`NAME.h`, `NAME.c` and `selftest.c`: a function of C", make,
                          hosts=("opencl", "cuda"))  # fmt: skip
