"""Executes warp-specialized roles as threads in the interpreter, with their mbarriers.

One role runs at a time, in its own thread, until it waits for a barrier or has arrived at one; then the others run. So
whatever an arrival allows happens at once, and copies run as far ahead as the barriers allow. Copied data arrive as
late as the text allows: when a role waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.frame import Action, Frame
from tensorir.interp.lanes import Lanes
from tensorir.interp.memory import Cells, Fault
from tensorir.ir.build import as_int
from tensorir.ir.tree import Arrive, Await, Buffer, InitBarriers, Role, Roles


class RoleTurns:
    """Scheduler that runs the roles of a warp-specialized kernel, Python threads, one at a time."""

    def __init__(self, count: int) -> None:
        self.ready = threading.Condition()
        self.alive, self.stuck, self.turn = set(range(count)), set[int](), 0
        self.fault: BaseException | None = None
        self.mine = threading.local()

    def run(self, me: int, body: Callable[[], None]) -> None:
        """Run the role number ``me`` to its end; an exception ends the other roles too."""
        self.mine.number = me
        try:
            self._await_turn()
            body()
        except _Ended:
            pass
        except BaseException as e:  # told by whoever started the roles
            self.fault = self.fault or e
        with self.ready:
            self.alive.discard(me)
            self.stuck.clear()
            self._pass_on(me)

    def others(self, stuck: str = "") -> None:
        """Let other roles run before returning.

        stuck: what this role waits for, in words; Fault ``barrier.stuck`` if all roles wait
        """
        me = self.mine.number
        with self.ready:
            self.stuck = self.stuck | {me} if stuck else set()
            if stuck and self.stuck >= self.alive:
                self.fault = Fault(Problem("barrier.stuck", f"all roles wait, one {stuck}, and nothing is in flight"))
            self._pass_on(me)
        self._await_turn()

    def _pass_on(self, me: int) -> None:
        later = sorted(self.alive, key=lambda n: (n <= me, n))
        self.turn = later[0] if later else -1
        self.ready.notify_all()

    def _await_turn(self) -> None:
        with self.ready:
            self.ready.wait_for(lambda: self.fault is not None or self.turn == self.mine.number)
        if self.fault is not None:
            raise _Ended


class _Ended(Exception):  # another role has failed
    """Raised in a role's thread to end it after another role has failed."""


@dataclass
class _Landing:
    """A tile copy in flight in one block, complete once its mbarrier is awaited."""

    home: Cells
    where: np.ndarray
    bytes: int


class _Kind:
    """State of all mbarriers of one buffer, in all blocks: phases, arrivals and bytes left, copies in flight."""

    def __init__(self, blocks: int, slots: int, arrivals: int) -> None:
        self.arrivals = arrivals
        self.phase = np.zeros((blocks, slots), np.int64)
        self.left = np.full((blocks, slots), arrivals, np.int64)
        self.bytes = np.zeros((blocks, slots), np.int64)
        self.coming: dict[tuple[int, int], list[_Landing]] = {}

    def settle(self, block: int, slot: int) -> None:
        """Advance the mbarrier ``slot`` of a block to its next phase if all arrivals and bytes of this one are
        complete.
        """
        if self.left[block, slot] == 0 and self.bytes[block, slot] == 0:
            self.phase[block, slot] += 1
            self.left[block, slot] = self.arrivals

    def land(self, block: int, slot: int) -> None:
        """Complete the copies that the current phase of the mbarrier ``slot`` of a block waits for."""
        coming = self.coming.get((block, slot), [])
        while self.left[block, slot] == 0 and self.bytes[block, slot] != 0 and coming:
            one = coming.pop(0)
            one.home.arrive(one.where)
            self.bytes[block, slot] -= one.bytes
            self.settle(block, slot)


class Barriers:
    """All mbarriers of a kernel; methods compile statements on them to closures."""

    def __init__(self, machine: Lanes) -> None:
        self.machine, self.kinds = machine, dict[Buffer, _Kind]()
        self.turns: RoleTurns | None = None

    def begin(self, s: InitBarriers) -> Action:
        """Closure that initializes mbarriers."""

        def run(f: Frame) -> None:
            self.kinds[s.buffer] = _Kind(self.machine.blocks, as_int(s.buffer.shape[0]), s.arrivals)

        return run

    def _of(self, b: Buffer) -> _Kind:
        if b not in self.kinds:
            raise Fault(Problem("barrier.uninitialised", f"{b.name} is used before it begins"))
        return self.kinds[b]

    def expect_landing(
        self, b: Buffer, slot: object, block: np.ndarray, home: Cells, where: np.ndarray, size: int
    ) -> None:
        """Register tile copies to elements ``where``, one row per block, that signal the mbarrier ``slot`` of buffer
        ``b``.

        size: bytes of a copy
        """
        kind = self._of(b)
        for n, (i, j) in enumerate(zip(block, np.broadcast_to(np.asarray(slot), block.shape), strict=True)):
            kind.coming.setdefault((int(i), int(j)), []).append(_Landing(home, where[n], size))

    def arrive(self, s: Arrive) -> Action:
        """Closure by which each thread of a Frame arrives at its mbarrier. It raises Fault ``barrier.misused`` for too
        many arrivals, ``barrier.uninitialised`` before ``InitBarriers``.
        """
        slot, rank = self.machine.expr(s.index[0]), None if s.rank is None else self.machine.expr(s.rank)
        cluster = self.machine.cluster

        def run(f: Frame) -> None:
            kind = self._of(s.buffer)
            slots = np.broadcast_to(np.asarray(slot(f)), f.block.shape)
            blocks = f.block if rank is None else f.block // cluster * cluster + np.asarray(rank(f))
            for i, j in zip(blocks, slots, strict=True):
                kind.left[i, j] -= 1
                kind.bytes[i, j] += s.bytes
                if kind.left[i, j] < 0:
                    message = f"{s.buffer.name}[{j}] has {kind.arrivals} arrivals in a phase, and there is one more"
                    raise Fault(Problem("barrier.misused", message))
                kind.settle(int(i), int(j))
            if self.turns is not None:
                self.turns.stuck.clear()
                if not s.bytes:  # who announces copies makes them next
                    self.turns.others()

        return run

    def wait(self, s: Await) -> Action:
        """Closure by which the threads of a Frame wait for the end of an mbarrier's phase; copies that it waits for
        land there. It raises Fault ``barrier.stuck`` if nothing can end the phase.
        """
        slot, parity = self.machine.expr(s.index[0]), self.machine.expr(s.parity)

        def run(f: Frame) -> None:
            kind = self._of(s.buffer)
            slots = np.broadcast_to(np.asarray(slot(f)), f.block.shape)
            wanted = np.broadcast_to(np.asarray(parity(f)), f.block.shape)
            pairs = sorted({(int(i), int(j), int(p)) for i, j, p in zip(f.block, slots, wanted, strict=True)})
            while True:
                for i, j, p in pairs:
                    if kind.phase[i, j] % 2 == p:
                        kind.land(i, j)
                left = [(j, p) for i, j, p in pairs if kind.phase[i, j] % 2 == p]
                if not left:
                    return
                told = f"for phase {left[0][1]} of {s.buffer.name}[{left[0][0]}]"
                if self.turns is None:
                    raise Fault(Problem("barrier.stuck", f"all threads wait {told}"))
                self.turns.others(told)

        return run

    def roles(self, s: Roles) -> Action:
        """Closure that runs all roles of a warp-specialized kernel, each to its end, in Python threads that take over
        from each other at mbarriers. It raises the first exception of a role, after all have ended.
        """
        machine = self.machine
        machine.hardware = machine.hardware.union(*(r.numbers for r in s.roles))
        each = [(r, turn) for r in s.roles for turn in range(r.turns)]
        bodies = [machine.stmt(r.body) for r, _ in each]  # ping-pong sets of warpgroups have registers of their own

        def run(f: Frame) -> None:
            self.turns = turns = RoleTurns(len(each))
            frames = [_frame_of(machine, r, turn, f) for r, turn in each]
            work = [threading.Thread(target=turns.run, args=(n, lambda n=n: bodies[n](frames[n])), daemon=True)
                    for n in range(len(bodies))]  # fmt: skip
            for t in work:
                t.start()
            for t in work:
                t.join()
            self.turns = None
            if turns.fault is not None:
                raise turns.fault

        return run


def _frame_of(machine: Lanes, r: Role, turn: int, f: Frame) -> Frame:
    """Frame with the threads of ``f`` that run the role; of a ping-pong role, its set number ``turn`` of warpgroups."""
    x, _, _ = machine.k.block
    thread = f.me % machine.threads
    group = thread // x
    first = r.first + turn * r.at_once
    mine = (group >= first) & (group < first + r.at_once)
    if r.one:
        mine &= thread % x == 0
    out = f.only(mine)
    out.env[r.var] = group[mine] - first
    if r.turn is not None:
        out.env[r.turn] = turn
    return out
