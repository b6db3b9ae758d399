"""How many blocks of a kernel a CUDA multiprocessor holds at once (programming guide, technical specifications)."""

from __future__ import annotations

from tensorir.target import Target

_WARPS = {75: 32, 86: 48, 87: 48, 88: 48, 89: 48, 120: 48, 121: 48}
_BLOCKS = {75: 16, 86: 16, 87: 16, 89: 24}
_RESERVED = 1024
"""Bytes of shared memory that the system keeps of each block, from sm_80 on."""
_REGISTER_UNIT = 256
"""Registers are given to warps in such pieces."""


def blocks_at_once(target: Target, registers: int, shared_bytes: int, threads: int) -> int:
    """Blocks of ``threads`` threads with so many registers each that run on one multiprocessor; 0 where none does."""
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
    """Warps that run on one multiprocessor at once, of the most that it can hold."""
    warps = -(-threads // target.warp)
    return blocks_at_once(target, registers, shared_bytes, threads) * warps / _WARPS.get(target.sm, 64)
