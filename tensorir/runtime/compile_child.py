"""Child process (``__main__``) that compiles a long text under a time limit, and runs it on zeros if compilation is
lazy.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from tensorir.codec import decode
from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.launch import CompiledProgram


def main(path: str) -> None:
    """Compile (and for OpenCL run once) the source in file ``path``, to learn whether the compiler crashes or hangs;
    other errors are ignored.
    """
    given = json.loads(Path(path).read_text(encoding="utf-8"))
    source = decode(Source, given["source"])
    with contextlib.suppress(TensorIRError, MemoryError):
        program = CompiledProgram(source, given["device"])
        if source.language == "opencl":
            first = program.at({d.name: d.low for d in source.dims}) if source.dims else program
            arrays = [aligned_empty(p.shape, p.dtype, 64) for p in first.source.inputs]
            for a in arrays:
                a[...] = 0
            first(*arrays)


if __name__ == "__main__":
    main(sys.argv[1])
