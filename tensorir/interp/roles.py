"""Warpgroups with roles, and the barriers that they meet at.

Each role runs in a thread of its own, one at a time: it runs until it waits for a barrier, or has released
something at one; then it is the others' turn, so that what a release allows happens at once, and copies are made as far
ahead as the barriers allow. What is copied lands as late as the text allows: when somebody waits for it.
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
    """The turn of one role of a kernel after the other."""

    def __init__(self, count: int) -> None:
        self.ready = threading.Condition()
        self.alive, self.stuck, self.turn = set(range(count)), set[int](), 0
        self.fault: BaseException | None = None
        self.mine = threading.local()

    def run(self, me: int, body: Callable[[], None]) -> None:
        """One role from its first turn to its end; what it raises ends the others as well."""
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
        """Let the others run; ``stuck``: what this role waits for, which ends all when every role does."""
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
    """Ends a role."""


@dataclass
class _Landing:
    """A copy that is in flight in one block."""

    home: Cells
    where: np.ndarray
    bytes: int


class _Kind:
    """The barriers of one buffer, in all blocks."""

    def __init__(self, blocks: int, slots: int, arrivals: int) -> None:
        self.arrivals = arrivals
        self.phase = np.zeros((blocks, slots), np.int64)
        self.left = np.full((blocks, slots), arrivals, np.int64)
        self.bytes = np.zeros((blocks, slots), np.int64)
        self.coming: dict[tuple[int, int], list[_Landing]] = {}

    def settle(self, block: int, slot: int) -> None:
        """Begin the next phase where this one has all that it waits for."""
        if self.left[block, slot] == 0 and self.bytes[block, slot] == 0:
            self.phase[block, slot] += 1
            self.left[block, slot] = self.arrivals

    def land(self, block: int, slot: int) -> None:
        """Let copies come, as many as the phase waits for."""
        coming = self.coming.get((block, slot), [])
        while self.left[block, slot] == 0 and self.bytes[block, slot] != 0 and coming:
            one = coming.pop(0)
            one.home.arrive(one.where)
            self.bytes[block, slot] -= one.bytes
            self.settle(block, slot)


class Barriers:
    """All barriers of a kernel, and how statements about them are executed."""

    def __init__(self, machine: Lanes) -> None:
        self.machine, self.kinds = machine, dict[Buffer, _Kind]()
        self.turns: RoleTurns | None = None

    def begin(self, s: InitBarriers) -> Action:
        """Fresh barriers."""

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
        """Tiles that will tell a barrier when they have come, one in each block."""
        kind = self._of(b)
        for n, (i, j) in enumerate(zip(block, np.broadcast_to(np.asarray(slot), block.shape), strict=True)):
            kind.coming.setdefault((int(i), int(j)), []).append(_Landing(home, where[n], size))

    def arrive(self, s: Arrive) -> Action:
        """An arrival of each thread."""
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
        """Threads wait for the end of the phase, in all blocks alike."""
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
        """All roles, to their ends."""
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
    """The threads of one of a role's sets of warpgroups, which know the numbers of these."""
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
