"""Registers that values only pass through, wherever they are allocated."""

from tensorir.ir.build import binary, const
from tensorir.ir.tree import Buffer, Kind, Load, Loop, Scope, Seq, Store, Var
from tensorir.lower.moves import carriers


def test_an_array_that_is_allocated_around_the_statements_is_asked_about_as_well():
    x, r = Buffer("x", (const(8),), "float16", Scope.GLOBAL), Buffer("r", (const(8),), "float16", Scope.REGISTER)
    y, i, j = Buffer("y", (const(8),), "float16", Scope.GLOBAL), Var("i", "index"), Var("j", "index")
    fill = Loop(i, const(8), Store(r, (i,), Load(x, (i,), "float16")), Kind.VECTOR)
    value = binary("+", Load(r, (j,), "float16"), Load(r, (j,), "float16"))
    assert carriers(Seq((fill, Loop(j, const(8), Store(y, (j,), value))))) == set()
    assert carriers(Seq((fill, Loop(j, const(8), Store(y, (j,), Load(r, (j,), "float16")))))) == {r}
