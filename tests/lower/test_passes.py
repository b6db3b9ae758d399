"""Each pass gives the form it promises, keeps the meaning, and cannot be left out unnoticed."""

import functools

import pytest
from mutated_programs import PROGRAMS

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.arith.conditions import conjuncts
from tensorir.arith.ends import constant_end, of_data
from tensorir.check.equivalence import compare_module
from tensorir.check.verdict import check
from tensorir.errors import TensorIRError
from tensorir.interp.numbers import Field
from tensorir.ir.build import binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.marks import Partition, Pipelined, Versions
from tensorir.ir.tree import (
    THREADS,
    Alloc,
    Barrier,
    If,
    IntrinCall,
    Kind,
    Load,
    Loop,
    Ramp,
    Scope,
    Seq,
    Stage,
    Store,
    Update,
)
from tensorir.ir.visit import Rewriter, find, reads, uses, walk, writes
from tensorir.lower import pipeline
from tensorir.lower.form import bound_loops, lowering, nests
from tensorir.lower.kernel import module_of
from tensorir.lower.moves import moves
from tensorir.schedule.analysis import across, in_loops

EXAMPLES = (
    "tiled opencl",
    "tiled vector cuda",
    "chain opencl",
    "exchange cuda",
    "partial_sums opencl",
    "argmin opencl",
    "gather cuda",
    "vectors opencl",
    "packed opencl",
    "normalise cuda",
    "conv2d cpu",
    "conv2d gpu",
    "matmul cuda",
    "pipelined opencl",
    "pipelined cuda",
)
EXCHANGING = (
    "tiled opencl",
    "tiled vector cuda",
    "chain opencl",
    "exchange cuda",
    "normalise cuda",
    "conv2d gpu",
    "matmul cuda",
    "pipelined opencl",
    "pipelined cuda",
)
"""Their threads read what other threads wrote."""
NAMES = [p.__name__ for p in pipeline.PASSES]


@functools.cache
def schedule(name):
    return PROGRAMS[name]()


@functools.cache
def all_forms(name):
    s = schedule(name)
    return dict(pipeline.forms(s.program, s.target))


def stores_and_loads(program):
    return [n for n in walk(program.body) if isinstance(n, Load | Store)]


def kinds(program):
    return {x.kind for x in find(program.body, Loop)}


def resolved(p):
    return all(b.scope is not Scope.AUTO for b in (*reads(p.body), *writes(p.body)))


def combined(p):
    """No thread has a part of the terms of a reduction."""
    return not any(across(x, s) for x in find(p.body, Loop) if x.kind in THREADS for s in find(x, Stage))


def bound_at_top(p):
    return all(x.kind.level == "sequential" for n in nests(p) for x in find(bound_loops(n)[1], Loop))


def allocated(p):
    made = {a.buffer for a in find(p.body, Alloc)}
    local = {b for b in (*reads(p.body), *writes(p.body)) if b.scope in (Scope.SHARED, Scope.WARP, Scope.REGISTER)}
    return local == made


def spread(p):
    held = [b for b in (*reads(p.body), *writes(p.body)) if b.scope is Scope.WARP]
    return all((b.layout is not None and b.layout.lanes) or len(b.shape) == 1 for b in held)


def flat(p):
    return all(len(n.index) == 1 for n in stores_and_loads(p)) and all(
        len(a.buffer.shape) == 1 and a.buffer.layout is None for a in find(p.body, Alloc)
    )


def ends_inside(loop):
    """Whether a condition by which data end a loop stands inside one that does not change it."""
    inside = loop.body
    moves = loop.kind in (Kind.SERIAL, Kind.UNROLL, Kind.VECTOR) and isinstance(inside, If)
    return moves and of_data(inside.cond) and not uses(inside.cond, {loop.var})


def guarded(loop):
    """Whether the condition around a loop's whole body ends it at a constant."""
    conds = conjuncts(loop.body.cond) if isinstance(loop.body, If) else ()
    return any(constant_end(c, loop.var, Arith()) is not None for c in conds)


def copied_so(store):
    """Whether cp.async has such a copy."""
    lanes = store.index[0].lanes if isinstance(store.index[0], Ramp) else 1
    return (
        moves(store) and store.buffer.scope is Scope.SHARED and DTYPES[store.buffer.dtype].bits * lanes in (32, 64, 128)
    )


PROMISES = {
    "resolve_scopes": resolved,
    "combine_threads": combined,
    "interleave_vthreads": lambda p: Kind.VTHREAD not in kinds(p),
    "bind_threads": bound_at_top,
    "split_init": lambda p: all(s.init is None for s in find(p.body, Stage)),
    "specialize_loops": lambda p: not find(p.body, Loop, lambda x: bool(Versions.of(x).where)),
    "partition_loops": lambda p: not find(p.body, Loop, lambda x: bool(Partition.of(x).at)),
    "deal_copies": lambda p: Kind.COOPERATIVE not in kinds(p),
    "emit_guards": lambda p: all(not s.guards for s in find(p.body, Stage)),
    "form_instructions": lambda p: Kind.INTRIN not in kinds(p) and all(s.intrin is None for s in find(p.body, Stage)),
    "expand_updates": lambda p: not find(p.body, Update),
    "compact": allocated,
    "spread_warps": spread,
    "start_products": lambda p: True,  # tests/warps/test_start_products.py
    "order_products": lambda p: True,  # tests/warps/test_roles.py
    "split_roles": lambda p: not find(p.body, Loop, lambda x: bool(Pipelined.of(x).roles)),
    "pipeline_loops": lambda p: not find(p.body, Loop, lambda x: Pipelined.of(x).depth > 1),
    "insert_barriers": lambda p: True,  # the interpreter looks for races
    "expand_stages": lambda p: not find(p.body, Stage) and not find(p.body, Loop, ends_inside),
    "flatten": flat,
    "vectorize": lambda p: Kind.VECTOR not in kinds(p),
    "settle_copies": lambda p: all(map(copied_so, find(p.body, Store, lambda x: x.later))),
    "hold_cells": lambda p: True,  # tests/lower/test_hold_cells.py
    "fold_constants": lambda p: True,  # tests/lower/test_fold_constants.py: it changes no form that others rely on
    "end_loops": lambda p: not find(p.body, Loop, guarded),
    "version_loops": lambda p: True,  # tests/lower/test_version_loops.py
    "finish": lambda p: all(getattr(x.extent, "value", 2) != 1 for x in find(p.body, Loop)),
    "name_indices": lambda p: True,
    "name_values": lambda p: True,  # tests/lower/test_name_values.py
}


def test_every_pass_has_its_promise():
    assert list(PROMISES) == NAMES


@pytest.mark.parametrize("name", EXAMPLES)
def test_forms(name):
    """From its pass on, each promise holds to the end."""
    held = []
    for step, program in all_forms(name).items():
        if step == "scheduled":
            continue
        held.append(step)
        broken = [p for p in held if not PROMISES[p](program)]
        assert not broken, f"after {step}: {broken}"
        assert all(isinstance(b.name, str) for b in writes(program.body))
    pipeline.verify(all_forms(name)[NAMES[-1]])
    assert not any(isinstance(s, Seq) and any(isinstance(x, Seq) for x in s.stmts) for s in walk(program.body))


@pytest.mark.parametrize("step", NAMES[NAMES.index("flatten") :])
@pytest.mark.parametrize("name", EXAMPLES)
def test_meaning_after(name, step):
    """Vector loops are loops to the interpreter, so that the forms from ``flatten`` on can be run."""
    program = all_forms(name)[step]
    assert compare_module(module_of(program), schedule(name).outputs, Field(), 3) is None


def refused_or_false(s):
    try:
        return not check(s)
    except TensorIRError:
        return True


@pytest.mark.parametrize("left_out", NAMES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_pass_can_be_left_out(name, left_out, monkeypatch):
    s = schedule(name)
    needed = left_out != "insert_barriers" or name in EXCHANGING
    monkeypatch.setattr(pipeline, "PASSES", [p for p in pipeline.PASSES if p.__name__ != left_out])
    if needed:
        assert refused_or_false(s)
    else:
        assert check(s)  # threads keep to their own cells: there is nothing that a barrier could order


@lowering
def emit_guards(program, target):
    """Claims to have run."""
    return program


def silent():
    """Drops the tails."""

    def visit(n):
        return n.map(visit).replace(guards=()) if isinstance(n, Stage) else n.map(visit)

    @lowering
    def emit_guards(program, target):
        return program.replace(body=visit(program.body))

    return emit_guards


@pytest.mark.parametrize("instead", [emit_guards, silent()], ids=["keeps them", "drops them"])
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in ("exchange cuda", "normalise cuda", "packed opencl")])
def test_tails_cannot_be_forgotten(name, instead, monkeypatch):
    """(the other three split nothing, so that they have no tail)"""
    s = schedule(name)
    monkeypatch.setattr(pipeline, "PASSES", [instead if p.__name__ == "emit_guards" else p for p in pipeline.PASSES])
    assert refused_or_false(s)


def test_missing_barriers_are_races(monkeypatch):
    monkeypatch.setattr(pipeline, "PASSES", [p for p in pipeline.PASSES if p.__name__ != "insert_barriers"])
    for name in ("tiled opencl", "chain opencl", "exchange cuda", "conv2d gpu", "matmul cuda"):
        verdict = check(schedule(name))
        assert not verdict
        assert verdict.problems[0].code == "race.shared", name


def test_barriers_are_not_wasted():
    """Two in the loop over k: the copies are complete, the copies have been read."""
    program = all_forms("tiled opencl")["insert_barriers"]
    assert len(find(program.body, Barrier)) == 2
    assert not find(all_forms("conv2d cpu")["insert_barriers"].body, Barrier)


def test_an_instruction_call_is_a_form_too():
    assert not find(all_forms("tiled opencl")["form_instructions"].body, IntrinCall)


def test_what_is_computed_from_zeros_is_not_taken_for_zeros():
    """Copies are 0 beyond the end of a reduction; what is computed from them is not, and must not be added up."""
    a, b = tir.placeholder((5, 5), name="a"), tir.placeholder((6, 5), name="b")
    u, v = tir.placeholder((5,), name="u"), tir.placeholder((6,), name="v")
    r = tir.reduce_axis(5, name="k")
    x = tir.compute((5, 5), lambda i, k: a[i, k] + u[i], name="x")
    y = tir.compute((6, 5), lambda j, k: b[j, k] + v[j], name="y")
    s = tir.Schedule(tir.compute((5, 6), lambda i, j: tir.sum(x[i, r] * y[j, r], axis=r), name="c"), target="cuda")
    out = s.stage_out("c", at="root", scope="register").name
    bi, i = s.split(f"{out}.i", [None, 4])
    bj, j = s.split(f"{out}.j", [None, 4])
    s.reorder(bi, bj, i, j).bind(bi, "block.y").bind(bj, "block.x").bind(i, "thread.y").bind(j, "thread.x")
    s.compute_at("c", j)
    ko, _ = s.split("c.k", [None, 4])
    for name, operand in (("x", "a"), ("y", "b")):
        s.compute_at(name, ko).set_scope(name, "register").stage_in(operand, at=ko, scope="shared")
    verdict = s.check()
    assert verdict, verdict


class Twice(Rewriter):
    """Another stage fills the copy of A first; the copy itself leaves out what lies beyond the end of the sum."""

    def on_If(self, n):
        copy = n.then
        if not isinstance(copy, Stage) or copy.name != "A_shared":
            return self.children(n)
        before_end = binary("<", in_loops(copy.body.index[1], copy), const(7))
        first = copy.replace(name="A_first", body=copy.body.replace(value=const(9.0, "float32")))
        return Seq((If(n.cond, first), If(binary("and", n.cond, before_end), copy)))


@pytest.mark.parametrize("change", [lambda body: body, Twice()])
def test_a_sum_runs_over_its_end_only_where_all_writers_left_zeros(change):
    s = schedule("tiled opencl")
    program = all_forms("tiled opencl")["deal_copies"]
    guards = next(p for p in pipeline.PASSES if p.__name__ == "emit_guards")
    made = guards(program.replace(body=change(program.body)), s.target)
    (total,) = find(made.body, Stage, lambda n: n.name == "C")
    assert isinstance(total.body, If) == (change.__class__ is Twice)
