"""Checks a Source against device limits before compiling; computes occupancy.

The runtime's own checks are not sufficient: PoCL builds and runs a kernel with 100 MB of local memory.
"""

from __future__ import annotations

import re
from math import prod

from tensorir.codegen.source import KernelLaunch, Param, Source, itemsize
from tensorir.errors import CompileError, LaunchError, Problem
from tensorir.runtime.tensor_maps import TENSOR_MAP_TYPES
from tensorir.target import Target, beyond_limits

_WARPGROUP = 128
_ROLE = re.compile(r"(?:if \(\w+ < (\d+)\) |else )\{  // \w+\n(?:\s*tir_registers_(?:up|down)<(\d+)>\(\);)?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_WARPS = {75: 32, 86: 48, 87: 48, 88: 48, 89: 48, 120: 48, 121: 48}
_BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24}
_RESERVED = 1024
"""Bytes of shared memory that the driver reserves per block, from sm_80 on."""
_REGISTER_UNIT = 256
"""Granularity, in registers, of a warp's allocation."""


def check_source(source: Source, target: Target) -> None:
    """Raise one CompileError with everything that keeps ``source`` from running on ``target``; dims at their least
    extents.
    """
    if source.dims:  # at their least extents: what is too large for others, a launch knows
        source = source.at({d.name: d.low for d in source.dims})
    problems = _consistency(source, target)
    for launch in source.kernels:
        problems += _launch(launch, target)
    if problems:
        raise CompileError(problems)


def check_launches(source: Source, target: Target) -> None:
    """Raise LaunchError for kernels that are too large for ``target`` at these extents of dims."""
    if problems := [p for launch in source.kernels for p in _launch(launch, target)]:
        raise LaunchError(problems)


def check_shared(kernel: str, nbytes: int, target: Target) -> None:
    """Raise CompileError when a compiled kernel needs more shared memory than a block may have."""
    if problems := beyond_limits(target, kernel, (1, 1, 1), (1, 1, 1), nbytes):
        raise CompileError(problems)


def check_registers(launch: KernelLaunch, text: str, registers: int) -> None:
    """Raise CompileError if warpgroups request more registers (``setmaxnreg``) than the block starts with, which would
    hang.

    registers: per thread, as compiled; text: source with the roles' ``setmaxnreg`` requests
    """
    threads = prod(launch.block)
    has, wants = -(-registers // 8) * 8 * threads, _registers_of_roles(launch, text, registers)
    if wants > has:
        message = f"the warpgroups of kernel {launch.name} ask for {wants} registers, and a block begins with {has}"
        raise CompileError(Problem("compile.registers", message, hint=f"__launch_bounds__({threads}, 1)"))


def _registers_of_roles(launch: KernelLaunch, text: str, registers: int) -> int:
    """Registers of all warpgroups of a block after ``setmaxnreg``, parsed from the text."""
    found = re.search(rf"\b{re.escape(launch.name)}\s*\([^{{}};]*\)\s*\{{", text)
    body = text[found.end() :].partition("\n}\n")[0] if found else ""
    total, first, groups = 0, 0, prod(launch.block) // _WARPGROUP
    for end, own in _ROLE.findall(body):
        past = int(end) if end else groups
        total, first = total + (past - first) * _WARPGROUP * int(own or registers), past
    return total


def _consistency(source: Source, target: Target) -> list[Problem]:
    names = [p.name for p in source.params]
    wrong = [f"two parameters of {source.name} are named {n}" for n in sorted(set(names)) if names.count(n) > 1]
    for p in source.params:
        if p.role == "constant" and len(p.data or b"") != _nbytes(p):
            wrong += [f"constant {p.name} needs {_nbytes(p)} bytes of data, not {len(p.data or b'')}"]
    wrong += [f"gather index {g.param} is no parameter" for g in source.gathers if g.param not in names]
    for launch in source.kernels:
        if not _IDENTIFIER.match(launch.name):
            wrong += [f"{launch.name[:80]!r} is no kernel name"]
        known = {*names, *(m.name for m in launch.maps)}
        wrong += [f"kernel {launch.name}: argument {a} is no parameter" for a in launch.args if a not in known]
        wrong += [f"kernel {launch.name}: {text}" for text in _maps(launch, source)]
    problems = [Problem("compile.signature", text) for text in wrong]
    if source.language != target.language:
        text = f"{source.name} is {source.language} source; {target.name} runs {target.language}"
        problems.append(Problem("compile.language", text, hint=f's.source("{target.language}")'))
    return problems


def _maps(launch: KernelLaunch, source: Source) -> list[str]:
    """Faults of a kernel's tensor maps that do not depend on addresses."""
    arrays = {p.name: p for p in source.params if p.role != "scalar"}
    taken = [p.name for p in source.params] + [m.name for m in launch.maps]
    wrong = [f"{source.language} has no tensor maps"] if launch.maps and source.language != "cuda" else []
    for m in launch.maps:
        if taken.count(m.name) > 1:
            wrong.append(f"tensor map {m.name} has the name of another argument")
        if m.array not in arrays:
            wrong.append(f"tensor map {m.name} is of {m.array}, which is no array")
        elif m.dtype in TENSOR_MAP_TYPES and prod(m.shape) * TENSOR_MAP_TYPES[m.dtype][1] > _nbytes(arrays[m.array]):
            have = _nbytes(arrays[m.array])
            wrong.append(f"tensor map {m.name} covers more than the {have} bytes of {m.array}")
    return wrong


def _nbytes(p: Param) -> int:
    return int(prod(p.shape)) * itemsize(p.dtype)


def _launch(launch: KernelLaunch, target: Target) -> list[Problem]:
    if min(launch.block) < 1 or min(launch.grid) < 0:
        text = f"kernel {launch.name}: grid {launch.grid} of blocks {launch.block} is not a launch"
        return [Problem("compile.grid", text)]
    return beyond_limits(target, launch.name, launch.grid, launch.block, launch.shared_bytes, launch.cluster)


def blocks_at_once(target: Target, registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks resident on one CUDA multiprocessor, for blocks of ``threads`` threads with ``registers`` 32-bit registers
    each (0: unknown, no limit) and ``shared_bytes`` of shared memory; 0 if none fits.
    """
    warps = -(-threads // target.warp)
    of_warp = -(-registers * target.warp // _REGISTER_UNIT) * _REGISTER_UNIT
    reserved = _RESERVED if target.sm >= 80 else 0
    room = target.shared_optin_bytes + reserved
    limits = [_BLOCKS.get(target.sm, 32), _WARPS.get(target.sm, 64) // warps]
    if registers:
        limits.append(target.registers // (of_warp * warps))
    if shared_bytes + reserved:
        limits.append(room // (shared_bytes + reserved))
    return max(0, min(limits))


def occupancy(target: Target, registers: int, shared_bytes: int, threads: int) -> float:
    """Fraction of a CUDA multiprocessor's maximum warps that are resident (``blocks_at_once``); 0 if no block fits."""
    warps = -(-threads // target.warp)
    return blocks_at_once(target, registers, shared_bytes, threads) * warps / _WARPS.get(target.sm, 64)
