"""Classes of IR nodes. Read this file first: everything else is a function over them (and their words, words.py).

Every loop starts at 0 and steps by 1; extents and shapes are expressions. ``//`` and ``%`` have Python's floor
meaning until lowering proves their operands non-negative. ``==`` of expressions builds a comparison: nodes are told
apart by ``is``, in sets and dicts as well, and ``structure.same`` compares how they are made.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from tensorir.errors.habits import unknown
from tensorir.ir.node import DIMS, NAMES, SIDES, Node, node
from tensorir.ir.operators import Operators, no_item, no_iteration, no_number, no_truth
from tensorir.ir.words import BLOCKS as BLOCKS
from tensorir.ir.words import THREADS as THREADS
from tensorir.ir.words import WARPS as WARPS
from tensorir.ir.words import Axis as Axis
from tensorir.ir.words import Kind as Kind
from tensorir.ir.words import Scope as Scope

# --- expressions -----------------------------------------------------------------------------------------------------


class Expr(Node, Operators["Expr"]):
    """An expression; operators build expressions (``ir/build.py``). int(), [], ``for`` and undecided bool() raise."""

    __slots__ = ()
    dtype: str

    def _made(self, name: str, *args: Any, **options: Any) -> Any:
        for a in args:
            if getattr(type(a), "WHOLE", False) and a.shape:
                return NotImplemented  # one element with a whole array: the array says what that is
        return _elements.element(name, args, options)

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name):
            raise unknown("element", name, "an element")

    def __bool__(self) -> bool:
        known = _build.truth(self)
        if known is None:
            raise _build.no_constant(self) if _build.is_extent(self) else no_truth(_build.is_comparison(self))
        return known

    def __index__(self) -> int:
        raise _build.no_constant(self) if _build.is_extent(self) else no_number("an int")

    def __getitem__(self, index: Any) -> Any:
        raise no_item()

    def __iter__(self) -> Any:
        raise no_iteration()


@node
class Const(Expr):
    """A constant: an int or bool; of float type an int, float or Fraction, not yet rounded to ``dtype``."""

    value: Any
    dtype: str

    def alone(self) -> Hashable:
        minus_zero = isinstance(self.value, float) and self.value == 0 and math.copysign(1, self.value) < 0
        return "-0" if minus_zero else self.value


@node
class Var(Expr):
    """A name bound once, by a Loop, an Iter, a Let or as a scalar parameter. Identity tells Vars apart.

    extent: of a declared reduce axis, else None;  order: of a scalar parameter's declaration, else 0
    bounds: least and largest extent of a dim at a launch, else None;  lanes: of the name of a vector, else 1
    """

    name: str
    dtype: str
    extent: Any = None
    order: int = 0
    bounds: tuple[int, int] | None = None
    lanes: int = 1

    def alone(self) -> Hashable:
        return self

    def own_bits(self) -> int:
        return self.BIT | 1 << crc32(self.name.encode()) % NAMES | (DIMS if self.bounds is not None else 0)


@node
class Unary(Expr):
    """``-``, ``not`` or ``~``."""

    op: str
    a: Expr
    dtype: str


@node
class Binary(Expr):
    """``+ - * / // %``, ``min max``, ``& | ^ << >>`` (any number of bits: NumPy's), ``< <= == !=`` and ``and or``.

    truth: value as a bool, if made by Python's ``==`` or ``!=`` with one object on both sides; else None, as in copies
    """

    op: str
    a: Expr
    b: Expr
    dtype: str
    truth: bool | None = field(default=None, init=False, repr=False)

    def own_bits(self) -> int:
        return self.BIT | SIDES if self.op in ("and", "or") else self.BIT


@node
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``; only the chosen side is evaluated."""

    cond: Expr
    a: Expr
    b: Expr
    dtype: str

    def own_bits(self) -> int:
        return self.BIT | SIDES


@node
class Cast(Expr):
    """``a`` converted to ``dtype``: to integers toward zero, integers wrapping around; to bool by ``!= 0``."""

    a: Expr
    dtype: str


@node
class Load(Expr):
    """``buffer[index]``."""

    buffer: Buffer
    index: tuple[Expr, ...]
    dtype: str


@node
class PadLoad(Expr):
    """A read that gives ``fill`` outside the buffer; declarations only, expanded when the program is built."""

    buffer: Buffer
    index: tuple[Expr, ...]
    fill: Expr
    dtype: str


class Terms(Node):
    """Base of descriptions of the terms that an element of a reduction combines: ``Prefix``, ``Placed``."""

    __slots__ = ()


@node
class Prefix(Terms):
    """The terms of a scan: those up to the element's position along the axis ``at`` of the result, in their order.

    exclusive: without the one at that place;  reverse: from the last one down to that place
    """

    at: Var
    exclusive: bool = False
    reverse: bool = False


@node
class Placed(Terms):
    """The terms of a scatter: those whose target, ``index`` in terms of the reduced axes, is the element.

    fill: what an element holds before, in terms of the axes of the result
    """

    index: tuple[Expr, ...]
    fill: Expr


@node
class Reduce(Expr):
    """A whole reduction, only at the top of a declaration: state ``which`` of ``combiner`` over ``axes``.

    part: the terms that an element combines, where these are not all
    """

    combiner: Combiner
    axes: tuple[Var, ...]
    values: tuple[Expr, ...]
    which: int
    dtype: str
    part: Terms | None = None


@node
class Call(Expr):
    """A pure function of the table ``MATH`` (``ir/build.py``), or "bitcast", "mulhi" or "power" (of integers)."""

    fn: str
    args: tuple[Expr, ...]
    dtype: str


@node
class Ramp(Expr):
    """``lanes`` consecutive integers from ``base``: the index of a vector access."""

    base: Expr
    lanes: int
    dtype: str


@node
class Broadcast(Expr):
    """``lanes`` copies of a scalar."""

    value: Expr
    lanes: int
    dtype: str


@node
class Pack(Expr):
    """A vector put together from scalars."""

    items: tuple[Expr, ...]
    dtype: str


@node
class Shuffle(Expr):
    """Lanes picked from two vectors of one width, ``b``'s counted after ``a``'s; one pick gives a scalar."""

    a: Expr
    b: Expr
    picks: tuple[int, ...]
    dtype: str


@node
class Layout(Node):
    """Order of a buffer's elements in memory: storage dimensions, outermost first, each a piece of a buffer dimension.

    names:  of the buffer's dimensions, for printing
    pieces: (d, divisor, extent) is ``index[d] // divisor % extent``; an extent of 0 stands for no ``%``
    pad:    spare elements of the innermost storage dimension
    folds:  for each storage dimension the (d, divisor, extent, scale) whose ``index[d] // divisor % extent * scale``
            are xored onto it; empty where none is
    lanes:  number of leading pieces that are no storage: they number the thread of the warp that holds the element (a
            fragment); one of dimension -1 stands for ``extent`` threads that all hold it
    """

    names: tuple[str, ...]
    pieces: tuple[tuple[int, int, int], ...]
    pad: int = 0
    folds: tuple[tuple[tuple[int, int, int, int], ...], ...] = ()
    lanes: int = 0


@node
class Buffer(Node):
    """A named array. ``lanes`` > 1 after vectorization of a register tile: its elements are vectors.

    data:   contents of a constant buffer, flattened in row-major order
    origin: the declaration (``expr.Tensor``) that the buffer stands for
    once:   what fills it may run ahead of time, once for many launches (see ``ir/once.py``)
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: Scope
    layout: Layout | None = None
    lanes: int = 1
    data: tuple[Any, ...] | None = None
    origin: Any = None
    once: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as integers; raises ``dim.constant`` if it depends on dims."""
        return tuple([_build.as_int(e) for e in self.shape])


@node
class Combiner(Node):
    """The operation of a reduction: it joins two states of ``len(old)`` values; associative by declaration.

    old, new: the variables of the two states;  result: the joined state in terms of them
    identity: constants that leave the other state unchanged
    name:     "sum", "max" … for printing, "user" otherwise
    commutative: whether states may be joined in any order; else ``old`` is always that of the earlier terms
    """

    name: str
    old: tuple[Var, ...]
    new: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Const, ...]
    commutative: bool = True


# --- statements ------------------------------------------------------------------------------------------------------


class Stmt(Node):
    """Base of statements."""

    __slots__ = ()


@node
class Store(Stmt):
    """``buffer[index] = value``.

    repeats: other threads may store the same value there (the shifted last tile of a split)
    later:   an asynchronous copy, complete once its group has been waited for (``CommitGroup``)
    adds:    the value is added to what is there, in one step that other threads do not divide
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    repeats: bool = False
    later: bool = False
    adds: bool = False


@node
class Prefetch(Stmt):
    """A request for the cache line of ``buffer[index]``; nothing is read, and the element need not exist."""

    buffer: Buffer
    index: tuple[Expr, ...]


@node
class Update(Stmt):
    """``buffers[index] = combiner(buffers[index], values)``, all at once.

    Reductions are written this way from the start, so no analysis has to recognise ``c = c + x`` again.
    atomic: several threads may update one element
    """

    buffers: tuple[Buffer, ...]
    index: tuple[Expr, ...]
    values: tuple[Expr, ...]
    combiner: Combiner
    atomic: bool = False


class LoopMark(Node):
    """Base of marks on loops (``ir/marks.py``); a mark without effect is false as a bool. RANK: its place among a
    loop's marks.
    """

    __slots__ = ()
    RANK: ClassVar[int]


@node
class Loop(Stmt):
    """``for var in range(extent)``; a bound loop names the hardware index instead of iterating.

    marks: what primitives ask for without changing the tree, at most one of each sort
    """

    var: Var
    extent: Expr
    body: Stmt
    kind: Kind = Kind.SERIAL
    marks: tuple[LoopMark, ...] = ()

    def marked(self, *marks: LoopMark) -> Loop:
        """A copy with ``marks`` in place of its marks of the same classes; marks without effect are removed."""
        if not self.marks and not any(marks):
            return self
        every = {type(m): m for m in (*self.marks, *marks)}
        return self.replace(marks=tuple(sorted(filter(None, every.values()), key=lambda m: m.RANK)))


@node
class Seq(Stmt):
    """Statements one after another."""

    stmts: tuple[Stmt, ...]


@node
class If(Stmt):
    """``then`` where ``cond`` holds."""

    cond: Expr
    then: Stmt


@node
class Let(Stmt):
    """``body`` with ``var`` standing for ``value``, computed once."""

    var: Var
    value: Expr
    body: Stmt


@node
class Iter(Node):
    """One axis of a stage's domain."""

    var: Var
    extent: Expr
    axis: Axis


@node
class Stage(Stmt):
    """One computation, described independently of the loops that drive it.

    ``binds[n]`` gives ``iters[n]`` as a function of the loops around; it runs where all ``guards`` hold and every
    iter is inside its extent. ``init`` runs once per cell before its first update. The loops say *when*, the stage
    says *what*: schedules rewrite loops and binds.

    intrin: the hardware instruction (``intrin/``) that does all INTRIN loops around the stage at once. The loops stay,
            so that every question about the program has its usual answer; lowering makes the IntrinCall.
    of:     made by lowering for the stage of this name, on the same cells in the same threads (its initialisation)
    padded: guards that lowering must drop: whole tiles run, and cells and terms outside the domain change no result
    """

    name: str
    iters: tuple[Iter, ...]
    binds: tuple[Expr, ...]
    body: Stmt
    init: Stmt | None = None
    guards: tuple[Expr, ...] = ()
    intrin: Any = None
    of: str = ""
    padded: tuple[Expr, ...] = ()


@node
class Alloc(Stmt):
    """``buffer`` is allocated, with undefined contents, while ``body`` runs."""

    buffer: Buffer
    body: Stmt


@node
class Barrier(Stmt):
    """All threads of the block (of the cluster, if that is a scope) arrive and see earlier writes to the given scopes.

    With scope "cluster" alone, threads synchronize and see initialized barriers, but no data written by others.

    threads: of the one role that synchronizes, the first ones of the block; 0 for all
    turn: number of the role's set of warpgroups that synchronizes; None if the role has one set
    """

    scopes: tuple[Scope, ...] = (Scope.SHARED,)
    threads: int = 0
    turn: Expr | None = None


@node
class CommitGroup(Stmt):
    """Make a group of this thread's asynchronous work since the last commit, to be waited for together.

    of: "copies" (stores ``later``), "products" (instructions of warpgroups that end later), or "stores" (tiles that
        leave shared memory asynchronously)
    """

    of: str = "copies"


@node
class WaitGroup(Stmt):
    """Wait until at most ``pending`` of this thread's groups, the youngest, are in flight (stores: have yet to read
    their tiles); other threads need a barrier as well.
    """

    pending: int
    of: str = "copies"


@node
class Fence(Stmt):
    """A fence: writes of this thread before it are visible to asynchronous operations that begin later.

    of: "products" (its registers, for instructions of warpgroups) or "async" (its writes to shared memory, for the
        asynchronous units that read it: such instructions, and copies of tiles)
    """

    of: str


@node
class Pixels(Node):
    """im2col traversal of an image (n, h, w, c): pixel by pixel, along rows, row after row, image after image.

    Pixel number (n * P + p) * Q + q is that at row p * steps[0] + lower[0] + offset[0], and its column likewise. What
    is beyond the image is 0 (im2col mode of tensor maps, PTX ISA, section on cp.async.bulk.tensor).

    shape:  P and Q: rows and columns of pixels per image
    steps:  rows and columns of the image from one to the next
    lower:  row and column of the first one, before ``offset`` is added
    offset: 0 or more rows and columns, the same for all pixels of a copy: of a tap of the filter
    """

    shape: tuple[int, int]
    steps: tuple[int, int]
    lower: tuple[int, int]
    offset: tuple[Expr, ...]

    def place(self, number: Expr) -> tuple[Expr, Expr, Expr]:
        """Image, row and column of a pixel, before ``offset`` is added."""
        (p, q), (along_h, along_w), (h, w) = self.shape, self.steps, self.lower
        return number // (p * q), number // q % p * along_h + h, number % q * along_w + w

    def upper(self, extents: Sequence[int]) -> tuple[int, int]:
        """im2col upper corner (rows, columns), ``lower + shape * steps - extents``; extents: image height, width"""
        h, w = (first + n * step - have for first, n, step, have
                in zip(self.lower, self.shape, self.steps, extents, strict=True))  # fmt: skip
        return h, w


@node
class Region(Node):
    """The tile of a buffer to which an instruction's operand refers.

    extents: one per dimension of the buffer as it was scheduled
    strides: in elements, one per extent, once flattening has made ``first`` a single index; empty before. Of a tile in
             swizzled rows (``swizzle`` bytes): from a row to the eighth after it, and from panel to panel
    steps:   of a tile that is copied whole (TMA), one per extent: distance in the array, in elements of that dimension,
             of neighbours in the tile; () for 1
    shape:   extents of the array as such a copy sees it, if it merges leading dimensions; () for the buffer's own
    pixels:  of a tile of an image that is copied pixel by pixel: ``first`` is (pixel, channel), and from flattening on
             (n, h, w, channel) of the first one before ``pixels.offset``; ``extents`` are so many pixels and channels
    """

    buffer: Buffer
    first: tuple[Expr, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...] = ()
    swizzle: int = 0
    steps: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    pixels: Pixels | None = None

    @property
    def span(self) -> tuple[int, ...]:
        """Elements of the array per dimension from one tile to the next."""
        return tuple(n * step for n, step in zip(self.extents, self.steps or (1,) * len(self.extents), strict=True))

    @property
    def array(self) -> tuple[int, ...]:
        """Extents of the array as copies of whole tiles see it: ``shape``, or the buffer's own."""
        return self.shape or self.buffer.dims


@node
class IntrinCall(Stmt):
    """One hardware instruction (``intrin/``): means exactly ``intrin.inline(operands)``.

    signals: barrier to which a copy reports its bytes on arrival, if any
    adds:    condition, for products that do not always accumulate: true: add to the accumulators, false: overwrite them
    """

    intrin: Any
    operands: tuple[Region, ...]
    signals: tuple[Region, ...] = ()
    adds: tuple[Expr, ...] = ()


# --- warpgroups with roles, and the barriers between them (mbarrier of the PTX ISA) -----------------------------------


@node
class InitBarriers(Stmt):
    """Each barrier of ``buffer`` begins its first phase; a phase ends with ``arrivals`` arrivals, when the bytes that
    they announced have come as well.
    """

    buffer: Buffer
    arrivals: int


@node
class Arrive(Stmt):
    """One arrival at ``buffer[index]``, which announces ``bytes`` to come by copies that name this barrier.

    rank: of the block of the cluster whose barrier it is, None for one's own
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    bytes: int = 0
    rank: Expr | None = None


@node
class Await(Stmt):
    """Wait until the phase of ``parity`` (first 0, second 1, third 0, …) has ended; in the first phase parity 1 passes
    at once. The thread then sees writes made before the arrivals.
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    parity: Expr


@node
class Role(Stmt):
    """Warpgroups ``first`` to ``first + extent - 1`` run ``body``, ``var`` numbers them from 0.

    registers: of each thread, taken from those of other roles;  one: the first thread alone runs it
    turns: sets of equally many warpgroups, each of which runs the body for itself: ``turn`` numbers the sets, and
           ``var`` the warpgroups of each
    """

    name: str
    var: Var
    first: int
    extent: int
    registers: int
    body: Stmt
    one: bool = False
    turns: int = 1
    turn: Var | None = None

    @property
    def numbers(self) -> dict[Var, int]:
        """{variable that differs between the role's warpgroups: number of its values}: ``var``, and ``turn`` if set."""
        mine = {self.var: self.at_once}
        return mine if self.turn is None else {**mine, self.turn: self.turns}

    @property
    def at_once(self) -> int:
        """Warpgroups of each set."""
        return self.extent // self.turns


@node
class Roles(Stmt):
    """Warp-specialized roles, run concurrently; their warpgroups, in order, are all of the block's."""

    roles: tuple[Role, ...]


@node
class Fact(Node):
    """The caller's promise about an argument: its alignment, or the range of its elements.

    align: bytes of which its address is a multiple, 0 for no promise
    low, high: ``low <= element < high`` for each element, None for no promise
    """

    buffer: Buffer
    align: int = 0
    low: int | None = None
    high: int | None = None


# --- the whole -------------------------------------------------------------------------------------------------------


@node
class Program(Node):
    """Parameters in signature order and a tree; every nest at the top is one kernel.

    inputs and outputs: buffers;  scalars: parameters passed by value
    facts: what is assumed of parameters, at most one for each;  done: names of the lowering passes that have run
    known: what these passes found out about indices (``arith.affine.Arith``); no copy has it
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Stmt
    scalars: tuple[Var, ...] = ()
    done: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    known: Any = field(default=None, init=False, repr=False)

    @property
    def params(self) -> tuple[Buffer, ...]:
        return self.inputs + self.outputs


from tensorir.ir import build as _build  # noqa: E402  (the operators above need the builders, which need the nodes)
from tensorir.ir import elements as _elements  # noqa: E402
