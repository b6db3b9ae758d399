"""Faults planted in an attention by rolling, of its repairs, masks and order: the exact check sees and blames each."""

import dataclasses

import online
import pytest
from blaming import checked_and_blamed

from tensorir.ir.build import binary, call, const
from tensorir.ir.tree import Select, Seq, Stage, Store
from tensorir.ir.visit import Rewriter, find, replace, sequence, substitute, swap_buffers
from tensorir.schedule.analysis import Index
from tensorir.schedule.primitives import rolling
from tensorir.schedule.rewrite import swap, with_body


def _pieces(program):
    """The loop over the pieces."""
    loops = Index(program).loops
    return loops.get("O.j.0") or loops["O.k.0"]


def with_stage(name, act):
    """A fault of one stage."""

    def fault(program):  # fmt: skip
        stage = Index(program).stages[name]
        return swap(program, stage, act(stage, Index(program).buffers()))

    return fault


def value(name, act):
    """A fault of what a stage stores, or of the term that it adds."""

    def fault(stage, buffers):
        body = stage.body
        if isinstance(body, Store):
            return stage.replace(body=body.replace(value=act(body.value, buffers)))
        return stage.replace(body=body.replace(values=tuple(act(v, buffers) for v in body.values)))

    return with_stage(name, fault)


def reads(name, old, new):
    return with_stage(name, lambda stage, buffers: swap_buffers(stage, {buffers[old]: buffers[new]}))


def without(name):
    def fault(program):
        return swap(program, Index(program).stages[name], None)

    return fault


def moved(name, where, other):
    """The nest of a stage put ``where``, "after" or "before", the nest of another one in the loop over the pieces."""

    def fault(program):
        ko = _pieces(program)
        parts = list(ko.body.stmts)
        mine, its = (next(p for p in parts if any(s.name == n for s in find(p, Stage))) for n in (name, other))
        parts.remove(mine)
        parts.insert(parts.index(its) + (where == "after"), mine)
        return with_body(program, replace(program.body, {ko: ko.replace(body=Seq(tuple(parts)))}))

    return fault


def started_again(name):
    """A stage that begins anew in each piece."""

    def fault(program):
        index = Index(program)
        ko, init = _pieces(program), index.stages[f"{name}.init"]
        top = next(x for x in index.above(init) if x.var.name.startswith(init.name))
        return with_body(program, replace(program.body, {top: None, ko: ko.replace(body=sequence([top, ko.body]))}))

    return fault


def skips(name, piece):
    def fault(program):
        ko = _pieces(program)
        kept = binary("!=", ko.var, piece)
        stage = Index(program).stages[name]
        return swap(program, stage, stage.replace(guards=(*stage.guards, kept)))

    return fault


def masks(name, act):
    """A fault of the condition under which a score counts."""

    class On(Rewriter):
        def on_Select(self, n):
            return act(self.children(n))

    return with_stage(name, lambda stage, _: stage.replace(body=On()(stage.body)))


def shifted(cond):
    """j <= i and i - j < 5, as j + 1 <= i and …"""
    first = cond.a
    return cond.replace(a=first.replace(a=first.a + 1))


def rename(stage, axis, other):
    """One axis of a stage taken for another one in what it computes."""
    at = {it.var.name: it.var for it in stage.iters}
    return stage.replace(body=substitute(stage.body, {at[axis]: other(at)}))


FAULTS = {
    # of the repair
    "l is not rescaled": without("l.rescale"),
    "O is not rescaled": without("O.rescale"),
    "no scale": value("m.scale", lambda v, b: const(1, "float32")),
    "the scale is the other way round": value("m.scale", lambda v, b: Select(v.cond, v.a, 1 / v.b, "float32")),
    "the scale is no power": value("m.scale", lambda v, b: Select(v.cond, v.a, v.b.args[0], "float32")),
    "the scale is of another base": value(
        "m.scale", lambda v, b: Select(v.cond, v.a, call("exp2", v.b.args[0]), "float32")
    ),
    "the scale is of the new m twice": reads("m.scale", "m_old", "m_ref"),
    "the scale is squared": value("l.rescale", lambda v, b: v * v.b),
    "the scale is added": value("O.rescale", lambda v, b: v.a + v.b),
    "the first scale is 1": value("O.rescale", lambda v, b: v + 1),
    "terms of l read the old m": reads("P", "m_ref", "m_old"),
    "m.ref keeps the identity": reads("P", "m_ref", "m"),
    "m.ref is one more": value("m.ref", lambda v, b: v + 1),
    # of the mask
    "the mask is not of P": reads("P", "T", "S"),
    "the mask is off by one": masks("T", lambda n: Select(shifted(n.cond), n.a, n.b, n.dtype)),
    "the mask is turned": masks("T", lambda n: Select(n.cond, n.b, n.a, n.dtype)),
    "the mask counts keys in the piece": with_stage("T", lambda s, _: rename(s, "j", lambda at: at["j"] % 8)),
    "masked scores are 0": masks("T", lambda n: Select(n.cond, n.a, const(0, "float32"), n.dtype)),
    # of the order
    "the old m is kept too late": moved("m.old", "after", "m"),
    "the scale is too early": moved("m.scale", "before", "m.ref"),
    "l is rescaled too late": moved("l.rescale", "after", "l"),
    "O is rescaled too late": moved("O.rescale", "after", "O"),
    "m begins anew": started_again("m"),
    "l begins anew": started_again("l"),
    "O begins anew": started_again("O"),
    "a piece is missing in l": skips("l", 1),
    "a piece is missing in O": skips("O", 0),
}


def schedule():
    return online.rolled(online.attention(score=online.VARIANTS["window"]), piece=8)


def test_it_is_right_without_a_fault():
    assert schedule().check() and len(FAULTS) > 20


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_seen_and_blamed(fault, monkeypatch):
    right = rolling._rolling

    def wrong(program, *args):
        done = right(program, *args)
        return dataclasses.replace(done, program=FAULTS[fault](done.program))

    monkeypatch.setattr(rolling, "_rolling", wrong)
    s = schedule()
    verdict, step = checked_and_blamed(s)
    assert not verdict, str(s)
    assert verdict.problems[0].code in ("check.not-equal", "memory.uninitialised"), str(verdict)
    assert step.primitive == "rolling"
