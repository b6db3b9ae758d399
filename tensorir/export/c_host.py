"""Exports an OpenCL or CUDA program as C files that find the driver at run time and launch the embedded kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files as resources
from math import prod
from typing import Any

import numpy as np

from tensorir.codegen.names import identifier
from tensorir.codegen.source import KernelLaunch, Param, Source, TensorMap, itemsize
from tensorir.export.c_checks import checks_of
from tensorir.export.c_dims import dims_text, from_buffers
from tensorir.export.c_extents import helpers, times, variable
from tensorir.export.c_header import DIM_ERRORS, ERRORS, given, header, in_c
from tensorir.export.c_program import KNOWN_CALL_TEXT, constants
from tensorir.export.program import ExportProgram
from tensorir.export.shipped.cuda_images import PORTABLE, number
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.extents import value
from tensorir.runtime.tensor_maps import SMALL_ARRAY_BYTES, SWIZZLES, TENSOR_MAP_TYPES

HOST_ERRORS = {
    "DRIVER": "the driver's library is not there",
    "DEVICE": "there is no device, or none that runs the kernels",
    "BUILD": "the driver does not take the kernels",
    "LAUNCH": "the driver refused a launch or a copy",
}
"""Errors beyond ``ERRORS``; their codes follow those."""
_ROLES = {"input": "TIR_INPUT", "scalar": "TIR_SCALAR", "output": "TIR_OUTPUT", "workspace": "TIR_SPACE",
          "constant": "TIR_CONSTANT", "dim": "TIR_SCALAR"}  # fmt: skip


@dataclass(frozen=True)
class Host:
    """Template of a C launcher for programs of one language.

    file:   its C source in ``shipped``
    names:  {word in the template: file names of a driver library, separated by ":"}
    stream: documentation of ``tir_call.stream`` and device addresses
    options: options of the kernel compiler
    """

    file: str
    names: Mapping[str, str]
    stream: str
    options: tuple[str, ...]


_OPENCL = """\
/* On OpenCL, whose library is found when it runs (TENSORIR_LIBOPENCL in the environment names another). Without
   call->stream the addresses are of the host, and the results are there when it returns. call->stream may be a
   cl_command_queue that runs commands in order: then arrays are given as cl_mem of its context, numbers by addresses of
   the host, the kernels are enqueued and not waited for, and indices are not looked at. Device and program are made at
   the first call, or by NAME_load. Calls are serialized. call->workspace, parallel_for and threads are not used. */"""
_CUDA = """\
/* On CUDA, whose driver is found when it runs (TENSORIR_LIBCUDA in the environment names another library). Not yet run
   on a GPU. Arrays may be on the device, and are used there, or on the host: those are copied, and results are there
   when it returns. With all of them on the device the kernels are enqueued on call->stream, a CUstream (NULL: the
   default one), and not waited for. Numbers are given by addresses of the host. Indices on the device are not looked
   at. The context is the stream's, else the current one, else that of the first device. What a device needs is made at
   the first call in a context, or by NAME_load, which is to be called before a graph is captured: machine code of its
   architecture, else PTX, else the text by NVRTC (TENSORIR_LIBNVRTC, CUDA_PATH). Arrays on the device start at
   multiples of: ALIGNED. call->workspace, parallel_for and threads are not used. */"""

HOSTS = {
    "opencl": Host(
        "host_opencl.c",
        {"LIBOPENCL": "libOpenCL.so.1:libOpenCL.so:/System/Library/Frameworks/OpenCL.framework/OpenCL"},
        _OPENCL,
        ("-cl-std=CL1.2",),
    ),
    "cuda": Host(
        "host_cuda.c",
        {"LIBCUDA": "libcuda.so.1:libcuda.so", "LIBNVRTC": "libnvrtc.so.13:libnvrtc.so.12:libnvrtc.so"},
        _CUDA,
        ("--std=c++17",),
    ),
}
"""By the language of the text."""


def hosted_files(part: ExportProgram, called: str) -> dict[str, bytes]:
    """{"NAME.c": content, "NAME.h": content} for a program that the C files launch on the driver.

    called: NAME
    """
    host = HOSTS[part.source.language]
    return {
        f"{called}.c": _unit(part, host, called).encode("utf-8"),
        f"{called}.h": _header(part.source, host, called).encode("utf-8"),
    }


def codes(source: Source) -> dict[str, int]:
    """{error name: return code} of a program launched on a driver, from 1 on."""
    return {name: n for n, name in enumerate(ERRORS | HOST_ERRORS | (DIM_ERRORS if source.dims else {}), 1)}


def visible(source: Source) -> Source:
    """Copy of the source without its workspace parameters, as callers see it."""
    return replace(source, params=tuple(p for p in source.params if p.role != "workspace"))


def _header(source: Source, host: Host, called: str) -> str:
    aligned = ", ".join(f"{max(p.align, 1)} ({identifier(p.name)})" for p in given(source) if p.role != "scalar")
    more = [host.stream.replace("NAME", called).replace("ALIGNED", aligned)]
    more += [
        "/* Make ready what the first call with this stream would. */",
        f"int {called}_load(const tir_call *call);",
    ]
    more += ["/* What the last error of this thread was, in words. */", f"const char *{called}_why(void);"]
    return header(visible(source), called, ERRORS | HOST_ERRORS, more)


def _unit(part: ExportProgram, host: Host, called: str) -> str:
    source, programs = part.source, _programs(part)
    parts = [f"/* {called}: launches the {source.language} kernels that are its text below. */", _INCLUDES]
    parts += [f'#include "{called}.h"', *_names(part, programs, host, called), _shipped("host.c")]
    parts += [constants(source, called), _constants(source, called)]
    parts += [_program(p.source, source, n) for n, p in enumerate(programs)]
    parts += [_table(programs), _images(part), KNOWN_CALL_TEXT]
    own = [_checks(source), _indices(source), _shaped(programs), dims_text(visible(source), called)]
    parts += [*helpers("".join(own)), *own, _shipped(host.file)]
    parts += [f"const char *{called}_why(void) {{ return tir_words; }}", ""]
    return "\n".join(x for x in parts if x)


def _programs(part: ExportProgram) -> list[ExportProgram]:
    """[the program], followed by its portable variant if it has one."""
    portable = None if part.images is None else part.images.portable
    return [part] if portable is None else [part, portable]


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


def _names(part: ExportProgram, programs: Sequence[ExportProgram], host: Host, called: str) -> Iterator[str]:
    sources = [p.source for p in programs]
    kernels = [k for s in sources for k in s.kernels]
    yield f"#define TIR_NAME {called}"
    yield f"#define TIR_FUNCTION(what) {called}_##what"
    yield from (f'#define TIR_{name} "{files}"' for name, files in host.names.items())
    yield f'#define TIR_OPTIONS "{" ".join(host.options)}"'
    yield f"#define TIR_WANTED {'TIR_CL_GPU' if part.kind == 'gpu' else 'TIR_CL_CPU'}"
    yield f"#define TIR_GIVEN {len(given(part.source))}"
    yield f"#define TIR_MAPS {sum(len(k.maps) for k in kernels)}"
    yield "enum {"
    yield from (f"  TIR_{name} = {called.upper()}_{name}," for name in codes(part.source) if name != "THREADS")
    yield f"  TIR_PROGRAMS = {len(programs)},"
    yield f"  TIR_MOST_ARRAYS = {max(1, *(len(s.params) for s in sources))},"
    yield f"  TIR_MOST_KERNELS = {max(1, *(len(s.kernels) for s in sources))},"
    yield f"  TIR_MOST_ARGUMENTS = {max(1, 1, *(len(k.args) for k in kernels))}"
    yield "};"


def _constants(source: Source, called: str) -> str:
    """C tables with the contents of the program's constants."""
    held = _held(source)
    if not held:
        return "static const void *const tir_shipped[1] = {0};\nstatic const void **const tir_constants = NULL;"
    names = ", ".join(f"tir_constant_{n}" for n, _ in enumerate(held))
    return (
        f"static const void *const tir_shipped[] = {{{names}}};\n"
        f"static const void **const tir_constants = {called}_constants;"
    )


def _held(source: Source) -> list[str]:
    return [p.name for p in source.params if p.role == "constant"]


def _launches(source: Source) -> list[KernelLaunch]:
    return [k for k in source.kernels if times(k.grid)]


def _arrays(source: Source, first: Source) -> list[Param]:
    """Parameters of a program: those passed by callers, in the order of the program ``first``, then workspace and
    constants.
    """
    params = {p.name: p for p in source.params}
    return [*(params[p.name] for p in given(first)), *(p for p in source.params if p.role in ("workspace", "constant"))]


def _program(source: Source, first: Source, number: int) -> str:
    """C tables with a program's arrays, tensor maps, kernels and launches; their names end in ``number``.

    first: the folder's first program, which gives the order of the caller's arrays
    """
    arrays, whole = _arrays(source, first), source.at({d.name: d.high for d in source.dims})
    at = {p.name: n for n, p in enumerate(arrays)}
    lines = [f"static const tir_array tir_array_{number}[] = {{"]
    lines += [f"  {_array(p, _held(first), source)}, /* {identifier(p.name)} */" for p in arrays]
    lines += ["};"]
    by_name = {k.name: k for k in whole.kernels}
    launches = [by_name[k.name] for k in _launches(source)]
    maps = [(k, m) for k in launches for m in k.maps]
    if maps:
        lines += [f"static const tir_map tir_map_{number}[] = {{", *(f"  {_map(m, at)}," for _, m in maps), "};"]
    for n, k in enumerate(launches):
        own = {m.name: -1 - i for i, (of, m) in enumerate(maps) if of is k}
        args = ", ".join(str(own[a] if a in own else at[a]) for a in k.args)
        lines += [f"static const int tir_args_{number}_{n}[] = {{{args or 0}}};"]
    lines += [f"static const tir_kernel tir_kernel_{number}[] = {{"]
    lines += [f"  {_kernel(k, f'tir_args_{number}_{n}')}," for n, k in enumerate(launches)]
    lines += [*([] if launches else ["  {0}"]), "};", *_literal(f"tir_text_{number}", source.text)]
    return "\n".join(lines)


def _literal(name: str, text: str) -> list[str]:
    return [f"static const char {name}[] =", *(f'  "{escaped(line)}\\n"' for line in text.splitlines()), "  ;"]


def _table(programs: Sequence[ExportProgram]) -> str:
    rows = []
    for n, p in enumerate(programs):
        arch, special = number(p.arch) if p.arch else (0, "")
        maps = f"tir_map_{n}" if any(k.maps for k in _launches(p.source)) else "NULL"
        facts = f"{len(p.source.params)}, {len(_launches(p.source))}, {arch}, {int(bool(special))}"
        rows.append(f"  {{tir_text_{n}, {facts}, tir_array_{n}, tir_kernel_{n}, {maps}}},")
    return "\n".join(["static const tir_program tir_programs[] = {", *rows, "};"])


def _images(part: ExportProgram) -> str:
    """C tables with precompiled CUDA images: machine code as words, PTX as text; "" for other languages."""
    if part.source.language != "cuda":
        return ""
    lines, rows = [], []
    for n, i in enumerate(part.images.images if part.images else ()):
        arch, special = number(i.arch)
        lines += [f"/* {i.kind} for {i.arch}, the {i.program} program */"]
        if i.kind == "ptx":
            lines += _literal(f"tir_image_{n}", i.data.rstrip(b"\0").decode("utf-8"))
        else:
            words = np.frombuffer(i.data + b"\0" * (-len(i.data) % 8), "<u8").tolist()
            lines += [f"static const uint64_t tir_image_{n}[] = {{{','.join(f'{w:#x}u' for w in words)}}};"]
        facts = f"{int(i.kind == 'ptx')}, {arch}, {int(bool(special))}, {int(i.program == PORTABLE)}"
        rows += [f"  {{{facts}, tir_image_{n}}},"]
    return "\n".join([*lines, "static const tir_image tir_images[] = {", *rows, "  {0, 0, 0, 0, NULL}", "};"])


def _array(p: Param, held: Sequence[str], source: Source) -> str:
    """C table row of an array: bytes (at the dims' largest values), alignment, bytes per element, role, number of its
    constant.

    held: names of the constants
    """
    size, most = _element(p), {d.name: d.high for d in source.dims}
    place = held.index(p.name) if p.role == "constant" else 0
    nbytes, element = value(times([*p.shape, size]), most), 8 if p.role == "dim" else size
    return f"{{{nbytes}, {max(p.align, 1)}, {element}, {_ROLES[p.role]}, {place}}}"


def _element(p: Param) -> int:
    """Bytes per element as kernels read it: narrow float scalars are passed as float32."""
    return 4 if p.role == "scalar" and p.dtype in WIDENED else itemsize(p.dtype)


def _braced(values: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, values)) or 0}}}"


def _kernel(k: KernelLaunch, args: str) -> str:
    facts = f"{_braced(k.grid)}, {_braced(k.block)}, {k.shared_bytes}, {k.cluster}"
    return f'{{"{k.name}", {len(k.args)}, {args}, {facts}}}'


def _map(m: TensorMap, at: Mapping[str, int]) -> str:
    """C table row of a tensor map, dimensions innermost first; im2col boxes as channels, then pixels.

    at: {array: its number}
    """
    kind, size = TENSOR_MAP_TYPES[m.dtype]
    strides = [size * prod(m.shape[d + 1 :]) for d in range(len(m.shape) - 1)]
    steps = m.steps or [1] * len(m.shape)
    small = prod(m.shape) * size < SMALL_ARRAY_BYTES
    head = [at[m.array], len(m.shape), kind, SWIZZLES[m.swizzle], int(bool(m.lower)), int(small)]
    rest = [m.shape[::-1], strides[::-1], m.box[::-1], steps[::-1], m.lower[::-1], m.upper[::-1]]
    return f"{{{', '.join([*map(str, head), *map(_braced, rest)])}}}"


_CHECKS = """\
static int tir_checked(void *const *buffers, int on_device) {
  if (!buffers) return tir_failed(TIR_NULL, "buffers", "NULL", 0);
  for (int n = 0; n < TIR_GIVEN; ++n) {
    const tir_array *a = &tir_programs[0].array[n];
    if (a->bytes && !buffers[n]) return tir_failed(TIR_NULL, "an address", "NULL", 0);
    if ((!on_device || a->role == TIR_SCALAR) && a->bytes && (uintptr_t)buffers[n] % a->element)
      return tir_failed(TIR_ALIGNMENT, "an address", "no multiple of its elements' size", 0);
  }
DIMS  return 0;
}"""


def _checks(source: Source) -> str:
    """Text of the C function ``tir_checked``, which validates arguments before any launch."""
    lines = from_buffers(source)
    for d in source.dims:
        v, words = variable(d.name), f'"{d.name} is {d.low} to {d.high}, got %lld"'
        lines += [f"if ({v} < {d.low} || {v} > {d.high}) {{"]
        lines += [f"  snprintf(tir_words, sizeof tir_words, {words}, (long long){v});"]
        lines += ["  return TIR_DIM_RANGE;", "}"]
    return _CHECKS.replace("DIMS", "".join(f"  {line}\n" for line in lines))


def _shaped(programs: Sequence[ExportProgram]) -> str:
    """Text of the C function ``tir_at``, which fills in a program's byte counts and grids for given extents."""
    source = programs[0].source
    head = "static const tir_program *tir_at(const tir_program *p, void *const *buffers, tir_shaped *made) {"
    if not source.dims:
        return "\n".join([head, "  (void)buffers, (void)made;", "  return p;", "}"])
    lines = [head, *(f"  {line}" for line in from_buffers(source)), "  made->program = *p;"]
    lines += ["  memcpy(made->array, p->array, sizeof *p->array * (size_t)p->arrays);"]
    lines += ["  memcpy(made->kernel, p->kernel, sizeof *p->kernel * (size_t)p->kernels);"]
    lines += ["  made->program.array = made->array, made->program.kernel = made->kernel;"]
    for which, part in enumerate(programs):
        said = in_c(part.source)
        lines += [f"  if (p == &tir_programs[{which}]) {{"]
        for n, p in enumerate(_arrays(part.source, source)):
            if isinstance(size := times([*p.shape, _element(p)]), str):
                lines += [f"    made->array[{n}].bytes = (size_t){said(size)};"]
        for n, k in enumerate(_launches(part.source)):
            for axis, blocks in enumerate(k.grid):
                if isinstance(blocks, str):
                    lines += [f"    made->kernel[{n}].grid[{axis}] = (size_t){said(blocks)};"]
        lines += ["  }"]
    return "\n".join([*lines, "  return &made->program;", "}"])


def _indices(source: Source) -> str:
    """Text of the C function ``tir_indices``, which checks indices in host arrays before a launch."""
    places = {p.name: n for n, p in enumerate(given(source))}
    words = f'return tir_failed(TIR_INDEX, "an index", "{ERRORS["INDEX"]}", 0);'
    full = 'return tir_failed(TIR_MEMORY, "malloc", "there is no memory", 0);'
    lines = [
        "static int tir_indices(void *const *buffers, const unsigned char *host) {",
        "  (void)buffers, (void)host;",
        *(f"  {line}" for line in from_buffers(source)),
    ]
    asked: list[tuple[dict[str, Any], set[str]]] = [({"gathers": (g,)}, {g.param}) for g in source.gathers]
    asked += [({"segments": (s,)}, {s.param}) for s in source.segments]
    asked += [({"unique": (u,)}, {name for name, _ in u.index if name}) for u in source.unique]
    for some, names in asked:
        none: dict[str, Any] = {"gathers": (), "segments": (), "unique": ()}
        checks = list(checks_of(replace(source, **(none | some)), given(source), "NAME"))
        if checks:
            there = " && ".join(f"host[{places[name]}]" for name in sorted(names)) or "1"
            lines += [f"  if (!host || {there if len(names) < 2 else f'({there})'}) {{"]
            lines += [f"  {line}".replace("return NAME_INDEX;", words).replace("return NAME_MEMORY;", full)
                      for line in checks] + ["  }"]  # fmt: skip
    return "\n".join([*lines, "  return 0;", "}"])


def escaped(line: str) -> str:
    """``line`` with quotes, backslashes, "?" and non-ASCII characters escaped for a C string literal, without quotes
    around it.
    """
    plain = line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")
    return "".join(c if 32 <= ord(c) < 127 else "".join(f"\\{b:03o}" for b in c.encode()) for c in plain)
