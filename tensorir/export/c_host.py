"""An OpenCL or CUDA program as C: ``NAME.h`` and ``NAME.c``, which hold its text, find the driver and launch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from math import prod

from tensorir.codegen.names import identifier
from tensorir.codegen.source import KernelLaunch, Param, Source, itemsize
from tensorir.export.c_program import ERRORS, constants, gathers, given, header
from tensorir.export.part import Part
from tensorir.ir.dtypes import WIDENED

FAILED = {
    "DRIVER": "the driver's library is not there",
    "DEVICE": "there is no device, or none that runs the kernels",
    "BUILD": "the driver does not take the kernels",
    "LAUNCH": "the driver refused a launch or a copy",
}
"""What can go wrong beyond ``ERRORS``, the codes behind theirs."""
_ROLES = {"input": "TIR_INPUT", "scalar": "TIR_SCALAR", "output": "TIR_OUTPUT", "workspace": "TIR_SPACE",
          "constant": "TIR_CONSTANT"}  # fmt: skip


@dataclass(frozen=True)
class Host:
    """What launches the programs of a language.

    file:    of ``shipped``, what does it
    library: of the driver, names by which the system may know it
    stream:  what ``tir_call.stream`` is, and what the addresses are then
    options: for the compiler, beside those of the language
    """

    file: str
    library: str
    stream: str
    more: Callable[[Part], Sequence[str]] = lambda part: ()


_OPENCL = """\
/* On OpenCL, whose library is found when it runs (TENSORIR_LIBOPENCL in the environment names another). Without
   call->stream the addresses are of the host, and the results are there when it returns. call->stream may be a
   cl_command_queue that runs commands in order: then arrays are given as cl_mem of its context, numbers by addresses of
   the host, the kernels are enqueued and not waited for, and indices are not looked at. Device and program are made at
   the first call, or by NAME_load. Threads take turns. call->workspace, parallel_for and threads are not used. */"""

HOSTS = {
    "opencl": Host(
        "host_opencl.c", "libOpenCL.so.1:libOpenCL.so:/System/Library/Frameworks/OpenCL.framework/OpenCL", _OPENCL
    )
}
"""By the language of the text."""


def hosted_files(part: Part, called: str) -> dict[str, bytes]:
    """``NAME.c`` and ``NAME.h`` of a program that a driver runs; called: NAME."""
    host = HOSTS[part.source.language]
    return {
        f"{called}.c": _unit(part, host, called).encode("utf-8"),
        f"{called}.h": _header(part.source, host, called).encode("utf-8"),
    }


def codes() -> dict[str, int]:
    """What such a program returns, by name."""
    return {name: n for n, name in enumerate(ERRORS | FAILED, 1)}


def visible(source: Source) -> Source:
    """What a caller sees of a program: its workspace is the host's own."""
    return replace(source, params=tuple(p for p in source.params if p.role != "workspace"))


def _header(source: Source, host: Host, called: str) -> str:
    more = [host.stream.replace("NAME", called), "/* Make ready what the first call with this stream would. */"]
    more += [f"int {called}_load(const tir_call *call);"]
    more += ["/* What the last error of this thread was, in words. */", f"const char *{called}_why(void);"]
    return header(visible(source), called, ERRORS | FAILED, more)


def _unit(part: Part, host: Host, called: str) -> str:
    source = part.source
    parts = [f"/* {called}: launches the {source.language} kernels that are its text below. */", _INCLUDES]
    parts += [f'#include "{called}.h"', *_names(part, host, called), _shipped("host.c")]
    parts += [constants(source, called), _constants(source, called), *host.more(part)]
    parts += _program(source, 0), _table(part), _checks(source, called), _shipped(host.file)
    parts += [f"const char *{called}_why(void) {{ return tir_words; }}", ""]
    return "\n".join(x for x in parts if x)


_INCLUDES = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>"""


def _shipped(file: str) -> str:
    return resources("tensorir.export.shipped").joinpath(file).read_text(encoding="utf-8")


def _names(part: Part, host: Host, called: str) -> Iterator[str]:
    from tensorir.export.bodies import BODIES

    language = part.source.language
    yield f"#define TIR_NAME {called}"
    yield f"#define TIR_FUNCTION(what) {called}_##what"
    yield f'#define TIR_LIB{language.upper()} "{host.library}"'
    yield f'#define TIR_OPTIONS "{" ".join(BODIES[language].options)}"'
    yield f"#define TIR_WANTED {'TIR_CL_GPU' if part.kind == 'gpu' else 'TIR_CL_CPU'}"
    yield f"#define TIR_GIVEN {len(given(part.source))}"
    yield "enum {"
    codes = [f"  TIR_{name} = {called.upper()}_{name}," for name in ERRORS | FAILED if name != "THREADS"]
    yield from codes
    programs = [part.source]
    yield f"  TIR_MOST_ARRAYS = {max(1, *(len(p.params) for p in programs))},"
    yield f"  TIR_MOST_KERNELS = {max(1, *(len(p.kernels) for p in programs))}"
    yield "};"


def _constants(source: Source, called: str) -> str:
    """Under one name for the host: those of now, and those that shipped."""
    held = [p for p in source.params if p.role == "constant"]
    if not held:
        return "static const void *const tir_shipped[1] = {0};\nstatic const void **const tir_constants = NULL;"
    names = ", ".join(f"tir_constant_{n}" for n, _ in enumerate(held))
    return (
        f"static const void *const tir_shipped[] = {{{names}}};\n"
        f"static const void **const tir_constants = {called}_constants;"
    )


def _program(source: Source, number: int) -> str:
    """The text and the launches of a program, as rows that end in its number."""
    arrays = [*given(source), *(p for p in source.params if p.role in ("workspace", "constant"))]
    at = {p.name: n for n, p in enumerate(arrays)}
    held = [p.name for p in source.params if p.role == "constant"]
    lines = [f"static const tir_array tir_array_{number}[] = {{"]
    lines += [f"  {_array(p, held)}, /* {identifier(p.name)} */" for p in arrays]
    lines += ["};"]
    launches = [k for k in source.kernels if prod(k.grid)]
    maps = [(k, m) for k in launches for m in k.maps]
    for n, k in enumerate(launches):
        own = {m.name: -1 - i for i, (of, m) in enumerate(maps) if of is k}
        args = ", ".join(str(own[a] if a in own else at[a]) for a in k.args)
        lines += [f"static const int tir_args_{number}_{n}[] = {{{args or 0}}};"]
    lines += [f"static const tir_kernel tir_kernel_{number}[] = {{"]
    lines += [f"  {_kernel(k, f'tir_args_{number}_{n}')}," for n, k in enumerate(launches)]
    lines += ["  {0}" if not launches else "", "};"]
    lines += [f"static const char tir_text_{number}[] ="]
    lines += [f'  "{escaped(line)}\\n"' for line in source.text.splitlines()] + ["  ;"]
    return "\n".join(x for x in lines if x)


def _table(part: Part) -> str:
    launches = sum(1 for k in part.source.kernels if prod(k.grid))
    arrays = len(part.source.params)
    row = f"{{tir_text_0, {arrays}, {launches}, 0, 0, tir_array_0, tir_kernel_0, NULL}}"
    return f"static const tir_program tir_programs[] = {{{row}}};"


def _array(p: Param, held: Sequence[str]) -> str:
    size = 4 if p.role == "scalar" and p.dtype in WIDENED else itemsize(p.dtype)
    number = held.index(p.name) if p.role == "constant" else 0
    return f"{{{prod(p.shape) * size}, {max(p.align, 1)}, {size}, {_ROLES[p.role]}, {number}}}"


def _kernel(k: KernelLaunch, args: str) -> str:
    def three(values: Sequence[int]) -> str:
        return f"{{{', '.join(map(str, values))}}}"

    facts = f"{three(k.grid)}, {three(k.block)}, {k.shared_bytes}, {k.cluster}"
    return f'{{"{k.name}", {len(k.args)}, {args}, {facts}}}'


def _checks(source: Source, called: str) -> str:
    """``tir_checked``: what is refused before anything is launched."""
    lines = ["static int tir_checked(void *const *buffers, int on_device) {"]
    lines += ['  if (!buffers) return tir_failed(TIR_NULL, "buffers", "NULL", 0);']
    lines += ["  for (int n = 0; n < TIR_GIVEN; ++n) {", "    const tir_array *a = &tir_programs[0].array[n];"]
    lines += ['    if (a->bytes && !buffers[n]) return tir_failed(TIR_NULL, "an address", "NULL", 0);']
    lines += ["    if ((!on_device || a->role == TIR_SCALAR) && a->bytes && (uintptr_t)buffers[n] % a->element)"]
    lines += ['      return tir_failed(TIR_ALIGNMENT, "an address", "no multiple of its elements\' size", 0);', "  }"]
    lines += ["  if (on_device) return 0;"] if source.gathers else []
    words = f'return tir_failed(TIR_INDEX, "an index", "{ERRORS["INDEX"]}", 0);'
    lines += [line.replace(f"return {called.upper()}_INDEX;", words) for line in gathers(source, called.upper())]
    return "\n".join([*lines, "  return 0;", "}"])


def escaped(line: str) -> str:
    """The inside of a literal of C."""
    plain = line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return "".join(c if 32 <= ord(c) < 127 else "".join(f"\\{b:03o}" for b in c.encode()) for c in plain)
