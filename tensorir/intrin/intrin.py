"""Registry of instructions by name: the package's and the user's."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import shown, wrong
from tensorir.errors.spelling import nearest
from tensorir.intrin import cuda, opencl, stmatrix
from tensorir.intrin.declare import FIELDS as FIELDS
from tensorir.intrin.declare import INTRINSICS as INTRINSICS
from tensorir.intrin.declare import Intrin as Intrin
from tensorir.intrin.declare import fields_of as fields_of
from tensorir.intrin.declare import meaning as meaning
from tensorir.intrin.declare import ship
from tensorir.intrin.hopper import tile_store_named, wgmma_named

OWN: set[str] = set()
"""Names of the instructions that users registered: nobody has tried their text."""


def register(intrin: Intrin) -> Intrin:
    """Register an instruction under its name, replacing an earlier one, and return it; traces hold only names."""
    if not isinstance(intrin, Intrin):
        raise wrong("intrin", intrin, "an Intrin")
    known()  # in whose place it is
    OWN.add(intrin.name)
    return ship(intrin)


def known() -> dict[str, Intrin]:
    """All registered instructions by name; the package's are created on first use."""
    cuda.ship_all()
    opencl.ship_all()
    stmatrix.ship_all()
    return INTRINSICS


def intrinsic(name: str | Intrin) -> Intrin:
    """The instruction called ``name``; an Intrin is returned if it is registered, so that traces can be replayed. Names
    of wgmma and TMA stores (``hopper``) are made and registered on first use.

    Raises ScheduleError ``tensorize.unknown``.
    """
    if isinstance(name, Intrin):
        if known().get(name.name) is name:
            return name
        message = f"{name.name} is not registered, and a trace holds only its name"
        raise ScheduleError(Problem("tensorize.unknown", message, hint="tensorir.intrin.intrin.register(…) it first"))
    if isinstance(name, str) and name in known():
        return known()[name]
    for named in (wgmma_named, tile_store_named):
        if isinstance(name, str) and (made := named(name)) is not None:
            return ship(made)
    close = nearest(name, known(), 3) or list(known())[:6]
    hint = f"one of {', '.join(close)} …"
    raise ScheduleError(Problem("tensorize.unknown", f"there is no instruction {shown(name)}", hint=hint))
