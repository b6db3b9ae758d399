"""``emit``: prints lowered modules as C, OpenCL C or CUDA C++; one printer, languages are tables (``Dialect``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod

from tensorir.arith.affine import Arith, Interval, same
from tensorir.codegen.c_text import closed
from tensorir.codegen.dialect import DIALECTS, FETCH, SHARED_ARENA, Dialect, wide_preamble
from tensorir.codegen.expressions import SUM, UNARY, Expressions, c_type
from tensorir.codegen.helpers import helper_text
from tensorir.codegen.hopper import init_lines, order_lines, product_registers, registers_line
from tensorir.codegen.instructions import aligned_tiles, instruction_lines, rounded_tiles, tensor_maps
from tensorir.codegen.literals import literal
from tensorir.codegen.names import Names, identifier, names_of_constants
from tensorir.codegen.preamble import called, preamble
from tensorir.codegen.shuffles import TRANSPOSE, Across, across
from tensorir.codegen.source import MOST_ON_STACK, Assumed, DimRange, GatherRange, KernelLaunch, Param, Source
from tensorir.codegen.wrapping import looked_at
from tensorir.errors import LoweringError, Problem
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.dims import most, most_of
from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.ir.marks import Remark, UnrollBy
from tensorir.ir.text import said
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Binary,
    Buffer,
    Call,
    Cast,
    CommitGroup,
    Const,
    Expr,
    Fence,
    If,
    InitBarriers,
    IntrinCall,
    Kind,
    Let,
    Load,
    Loop,
    Prefetch,
    Ramp,
    Region,
    Role,
    Roles,
    Scope,
    Select,
    Seq,
    Stmt,
    Store,
    Unary,
    Var,
    WaitGroup,
)  # fmt: skip
from tensorir.ir.visit import find, has, uses, writes
from tensorir.lower.end_loops import ended_by_data, ended_by_place
from tensorir.lower.form import kernel_arith, loop_ranges
from tensorir.lower.kernel import Kernel, Module, bytes_of
from tensorir.lower.moves import carriers, moves
from tensorir.target import Target

INDENT = "  "
DECLARED_SHARED = 48 << 10
"""Bytes of block memory that CUDA kernels may declare; above that all of it comes at launch."""
ARENA_ALIGN = 128
TILE_ALIGN = 1024
"""Alignment in bytes of shared arrays that are swizzled by their address."""


def emit(module: Module, target: Target, notes: Sequence[str] = (), gathers: Sequence[GatherRange] = ()) -> Source:
    """Return the Source of a lowered program: its text, parameters and launches. Deterministic.

    notes:   lines for the header comment (what is computed, the schedule)
    gathers: launch-time checks of index arrays, which the Source carries
    Raises LoweringError ``codegen.intrinsic`` and other ``codegen`` codes for what the language lacks.
    """
    dialect = DIALECTS[target.language]
    for b in (a.buffer for k in module.kernels for a in find(k.body, Alloc)):
        if b.scope not in dialect.space:
            message = f"{b.name} has {b.scope.value} scope, for instructions that {dialect.name} does not have"
            raise LoweringError(Problem("codegen.intrinsic", message, hint="a schedule that is made for this target"))
    printed = [_KernelText(k, dialect, target, module) for k in module.kernels]
    bodies = [p.text() for p in printed]
    helpers = called({name: text for p in printed for name, text in p.expr.helpers.items()}, bodies)
    params = _params(module, printed)
    parts = [*_header(module, params, notes), *_includes(dialect, module)]
    if dialect.family == "c":
        brought = closed(helpers, lambda name: helper_text(name, dialect))
    else:
        brought = preamble(helpers)
    if any(p.is_wide for p in printed):
        parts += ["", wide_preamble(any("WIDE_INLINE" in text for text in brought))]
    brought += [_constant(b, name, dialect) for b, name in names_of_constants(module.constants).items()]
    parts += ["", *brought] if brought else []
    text = "\n".join(parts) + "\n\n" + "\n\n".join(bodies) + "\n"
    dims = tuple(DimRange(v.name, *v.bounds) for v in module.scalars if v.bounds is not None)
    assumed = tuple(Assumed(f.buffer.name, f.align, f.low, f.high) for f in module.facts)
    launches = tuple(p.launch() for p in printed)
    used = tuple(dict.fromkeys(c.intrin.name for k in module.kernels for c in find(k.body, IntrinCall)))
    return Source(module.name, dialect.name, text, params, launches, tuple(gathers), assumed, used, dims=dims)


def _header(module: Module, params: Sequence[Param], notes: Sequence[str]) -> list[str]:
    def shape(b: Buffer) -> str:
        return f"{b.name} {b.dtype}[{', '.join(str(said(n)) for n in b.shape)}]"

    given = [shape(b) for b in module.inputs]
    given += [f"{v.name} {v.dtype}" if v.bounds is None else f"{v.name} {v.bounds[0]} to {v.bounds[1]}"
              for v in module.scalars]  # fmt: skip
    lines = [f"{', '.join(map(shape, module.outputs))} from {', '.join(given) or 'nothing'}"]
    for k in module.kernels:
        x, y, z = map(said, k.grid)
        bx, by, bz = k.block
        lines.append(
            f"launch {identifier(k.name)}: blocks ({x}, {y}, {z}), "
            f"threads ({bx}, {by}, {bz}), shared {k.shared_bytes} B{', once' if k.once else ''}"
        )
    given = [f"{p.name} {p.align}" for p in params if p.role != "scalar" and p.align > DTYPES[p.dtype].bits // 8]
    if given:
        lines.insert(1, f"alignment in bytes: {', '.join(given)}")
    return [f"// {comment(line)}" for line in [*lines, *notes]]


def comment(text: str) -> str:
    """User text made safe for a ``//`` comment: one line, ASCII, no line continuation, no trigraph."""
    one = text.replace("\n", " ").replace("\r", " ").replace("??", "? ?").encode("ascii", "backslashreplace").decode()
    return one.rstrip("\\").replace("*/", "* /").replace("/*", "/ *")


def _includes(dialect: Dialect, module: Module) -> list[str]:
    used = {b.dtype for k in module.kernels for b in (*k.params, *(a.buffer for a in find(k.body, Alloc)))}
    used |= {x.dtype for k in module.kernels for e in find(k.body, (Cast, Call)) for x in (e, *e.children())}
    half, double = "float16" in used, "float64" in used
    wanted = (dialect.header, dialect.half_header * half, dialect.double_header * double)
    return [x for x in wanted if x]


def _constant(b: Buffer, name: str, dialect: Dialect) -> str:
    if b.dtype in WIDENED:
        raise LoweringError(Problem("codegen.constant-type", f"constant {b.name} is {b.dtype}; declare it as float32"))
    values = ", ".join(literal(Const(v, b.dtype), dialect) for v in b.data or ())
    return dialect.constant.format(type=dialect.types[b.dtype], name=name, size=len(b.data or ()), values=values)


def _params(module: Module, printed: list[_KernelText]) -> tuple[Param, ...]:
    align: dict[Buffer, int] = {f.buffer: f.align for f in module.facts}
    for p in printed:
        for b, n in p.expr.aligned.items():
            align[b] = max(align.get(b, 0), n)

    def param(b: Buffer, role: str) -> Param:
        return Param(
            b.name, b.dtype, tuple(said(n) for n in b.shape), role, max(align.get(b, 0), DTYPES[b.dtype].bits // 8)
        )

    order = {b: (b.origin.order if b.origin is not None else 0) for b in module.inputs}
    given = [(order[b], param(b, "input")) for b in module.inputs]
    given += [(v.order, _value(v)) for v in module.scalars]
    out = [p for _, p in sorted(given, key=lambda x: x[0])]
    out += [param(b, "output") for b in module.outputs]
    return (*out, *(param(b, "workspace") for b in module.workspace))


def _value(v: Var) -> Param:
    """Kernel parameter for a by-value argument; dims are int32."""
    if v.bounds is not None:
        return Param(v.name, "int32", (), "dim", 4)
    return Param(v.name, v.dtype, (), "scalar", DTYPES[v.dtype].bits // 8)


def _addressed(body: Stmt) -> set[Buffer]:
    """Buffers that the kernel's text reads or writes by their names; those used through tensor maps only are
    missing.
    """
    mapped = {id(r) for c in find(body, IntrinCall) for t, r in zip(c.intrin.operands, c.operands, strict=True)
              if t.name in c.intrin.maps}  # fmt: skip
    return {n.buffer for n in find(body, (Load, Store, Prefetch, Region)) if id(n) not in mapped}  # type: ignore[attr-defined]


def _elements(b: Buffer) -> int:
    return math.prod(most_of(b))


class _KernelText:
    """Printer of one kernel; ``text()`` is its definition, ``launch()`` its launch."""

    def __init__(self, k: Kernel, dialect: Dialect, target: Target, module: Module) -> None:
        # on a CPU: constant offsets of narrow indices stay out of addresses, which costs 8 % of a tight loop
        if target.kind == "cpu" or any(_elements(b) > INT_MAX for b in k.params) or not fits_int(k.axes, k.body):
            dialect = replace(dialect, types={**dialect.types, "index": dialect.types["int64"]})
        self.k, self.d = k, dialect
        constants = names_of_constants(module.constants)
        self.names = Names([*(identifier(x.name) for x in module.kernels), *constants.values()], constants)
        arith = kernel_arith(Arith(), k.axes, k.body)
        for let in find(k.body, Let):
            if let.var.dtype == "index":
                form = arith.linear(let.value)
                arith.divisors[let.var] = math.gcd(form.constant, *form.terms.values())
        self.assumed = {f.buffer: f.align for f in module.facts if f.align > DTYPES[f.buffer.dtype].bits // 8}
        alone = math.prod(k.block) == 1 and not has(k.body, Barrier, IntrinCall)
        may_widen = target.kind == "cpu" and alone and dialect.family == "opencl"
        raw = frozenset(carriers(k.body) if dialect.family == "cuda" else ())
        self.expr = Expressions(dialect, target, self.names, arith, may_widen=may_widen, raw=raw)
        self.expr.rounded_tiles = rounded_tiles(k.body)
        self.expr.maps = tensor_maps(k.body, self.names, self.expr.rounded_tiles)
        for b in (b for call in find(k.body, IntrinCall) for b in aligned_tiles(call)):
            self.expr.aligned[b] = TILE_ALIGN
        addressed = _addressed(k.body)
        self.params = [b for b in k.params if b in addressed]
        for b in k.params:
            self.names.buffer(b)
        for v in k.scalars:
            self.names.variable(v)
        wide = dialect.types["index"] != dialect.types["int32"]
        dims = [v for v in k.scalars if v.bounds is not None] if wide else []
        self.narrow = {v: self.names.claim(f"{self.names.variable(v)}_int") for v in dims}
        for a in find(k.body, Alloc):
            self.names.buffer(a.buffer)
        for x in k.axes:
            self.names.variable(x.var)
        self.open: list[Buffer] = []  # what is declared where a statement stands
        self.looked_at = looked_at(k.body)
        self.sums, self.given = product_registers(k.body)
        self.group = self.names.claim("warpgroup") if has(k.body, Roles) else ""
        self.names.nest(k.body, frozenset())

    def _kind(self, v: Var) -> str:
        """C type of a by-value argument."""
        return c_type("int32" if v.bounds is not None else v.dtype, self.d)

    def _given(self, v: Var) -> str:
        """Name of the parameter for a by-value argument: that of the variable, or another if a dim is copied to a
        64-bit variable.
        """
        return self.narrow[v] if v in self.narrow else self.names.variable(v)

    def _dims(self) -> list[str]:
        """Lines that copy int32 dims to variables of the kernel's 64-bit index type; [] if there are none."""
        wide = self.d.types["index"]
        return [f"{INDENT}const {wide} {self.names.variable(v)} = {name};" for v, name in self.narrow.items()]

    def launch(self) -> KernelLaunch:
        """Grid, block, arguments and shared memory of the kernel; call it after ``text``, which finds alignments."""
        maps = tuple(self.expr.maps.values())
        args = (*(b.name for b in self.params), *(m.name for m in maps), *(v.name for v in self.k.scalars))
        arena = self._arena()
        size = max(end for _, end in arena.values()) if arena else self.k.shared_bytes
        k = self.k
        grid = said(k.grid[0]), said(k.grid[1]), said(k.grid[2])
        return KernelLaunch(identifier(k.name), args, grid, k.block, size, k.once, maps, k.cluster)

    def _arena(self) -> dict[Buffer, tuple[int, int]]:
        """{array: (start, end)}: its byte range in dynamic shared memory; {} if arrays are declared statically."""
        out: dict[Buffer, tuple[int, int]] = {}
        if self.d.family == "c":
            small = self.k.shared_bytes <= MOST_ON_STACK
        else:  # others' memory is told by its offset
            small = self.d.family != "cuda" or (self.k.shared_bytes <= DECLARED_SHARED and self.k.cluster == 1)
        if small:
            return out
        end = 0
        for b in self.k.shared:
            align = max(ARENA_ALIGN, self.expr.aligned.get(b, 0))
            start = -(-end // align) * align
            end = start + bytes_of(b)
            out[b] = start, end
        return out

    def _shared(self) -> list[str]:
        """Lines that declare shared-memory arrays, or pointers into dynamic shared memory."""
        arena = self._arena()
        if not arena:
            return [f"{INDENT}{self.array(b)}" for b in self.k.shared]
        if self.d.one_thread:
            return []  # arguments
        self.expr.helpers["TIR_SHARED"] = SHARED_ARENA
        size, arena_name = max(end for _, end in arena.values()), self.names.claim("tir_shared")
        lines = [f"{INDENT}TIR_SHARED({arena_name}, {size});"]
        for b, (start, _) in arena.items():
            kind, at = self._element(b), f"({arena_name} + {start})" if start else arena_name
            lines.append(f"{INDENT}{kind} *const {self.names.buffer(b)} = ({kind} *){at};")
        return lines

    def text(self) -> str:
        """Complete C definition of the kernel."""
        k, d = self.k, self.d
        body = [*self._dims(), *self.stmt(k.body, 1)]
        x, y, z = k.block
        written = set(writes(k.body))
        params, told = [], []
        for b in self.params:
            given = {"const": "" if b in written else "const ", "type": d.types[b.dtype], "name": self.names.buffer(b)}
            note = d.aligned_param.format(bytes=self.assumed[b]) if b in self.assumed else ""
            params.append(d.param.format(**given) + note)
            if b in self.assumed and d.aligned_line:
                told.append(INDENT + d.aligned_line.format(bytes=self.assumed[b], **given))
        if self.expr.maps:
            self.expr.need("TirTensorMap")
            params += [f"const __grid_constant__ TirTensorMap {m.name}" for m in self.expr.maps.values()]
        params += [d.scalar.format(type=self._kind(v), name=self._given(v)) for v in k.scalars]
        roles = has(k.body, Roles)  # registers are only given away where one block has a multiprocessor
        threads = f"{x * y * z}, 1" if roles else x * y * z
        if k.cluster > 1:
            threads = f"{threads}) __cluster_dims__({k.cluster}, 1, 1"
        if d.one_thread:
            params += [f"{self._element(b)} *restrict {self.names.buffer(b)}" for b in self._arena()]
            params.append("const int64_t *block")
        asked = ", ".join(params)
        head = d.entry.format(name=identifier(k.name), params=asked, x=x, y=y, z=z, threads=threads)
        used = [a for a in k.axes if uses(k.body, {a.var})]
        top = told + [
            f"{INDENT}const {d.types['index']} {self.names.variable(a.var)} = {self._index(a)};"
            + (f"  // {why}" if (why := Remark.of(a).why) else "")
            for a in used
        ]
        if roles:  # the same in all threads of a warp, which the compiler is to know
            top.append(f"{INDENT}const {d.types['index']} {self.group} = __shfl_sync(0xffffffffu, threadIdx.y, 0);")
        if d.one_thread and not used:
            top.append(f"{INDENT}(void)block;")
        shared = self._shared()
        if not self.is_wide:
            return "\n".join([head, "{", *shared, *top, *body, "}", *self._runner()])
        return self._around(head, params, shared, top, body)

    @property
    def is_wide(self) -> bool:
        """True if the body must be a separate function, with a target attribute for 64-byte vector registers;
        known once the body has been printed.
        """
        return self.expr.wide

    def _around(self, head: str, params: list[str], shared: list[str], top: list[str], body: list[str]) -> str:
        """Text of the kernel as two functions: its body, with target attributes, and the kernel proper, which calls it.

        Attributes select the instruction set of functions, but not of OpenCL kernels. Group indices and local memory
        exist only in kernels. The function is not static: PoCL would put a fixed address of local memory, common to all
        blocks, into a function called once.
        """
        k, index = self.k, self.d.types["index"]
        inner = [f"{self.d.space[b.scope]}{self._element(b)} *restrict {self.names.buffer(b)}" for b in k.shared]
        axes = [self.names.variable(a.var) for a in k.axes if uses(k.body, {a.var})]
        name = self.names.claim(f"{identifier(k.name)}_body")
        given = [*map(self.names.buffer, (*k.params,)), *map(self._given, k.scalars)]
        given += [*map(self.names.buffer, k.shared), *axes]
        signature = ", ".join([*params, *inner, *(f"const {index} {v}" for v in axes)])
        function = [f"WIDE void {name}({signature})", "{", *body, "}", ""]
        return "\n".join([*function, head, "{", *shared, *top, f"{INDENT}{name}({', '.join(given)});", "}"])

    def _runner(self) -> list[str]:
        """Lines of a C function that calls the kernel for one block with arguments from an array; [] for languages with
        launches.
        """
        d = self.d
        if not d.runner:
            return []
        given = [f"args[{n}]" for n, _ in enumerate(self.params)]
        given += [f"*(const {self._kind(v)} *)args[{len(given) + n}]" for n, v in enumerate(self.k.scalars)]
        unused = "" if given else "(void)args; "
        given += [f"({self._element(b)} *)(void *)((char *)(intptr_t)block[3] + {start})"
                  for b, (start, _) in self._arena().items()]  # fmt: skip
        call = f"{identifier(self.k.name)}({', '.join([*given, 'block'])})"
        if blocks_meet(self.k):
            call, self.expr.helpers["TIR_MEETS"] = f"TIR_MEETS({call})", MEETS
        return ["", d.runner.format(unused=unused, name=identifier(self.k.name), call=call)]

    def array(self, b: Buffer) -> str:
        """C declaration of the shared or local array ``b``, without indentation."""
        size, kind = as_int(b.shape[0]), self._element(b)
        align = self.expr.aligned.get(b, 0)
        space, note = self.d.space[b.scope], self.d.align.format(bytes=align) if align else ""
        name = self.names.buffer(b)
        if self.d.family == "cuda":
            return f"{note.strip()}{' ' if note else ''}{space}{kind} {name}[{size}];"
        return f"{space}{kind} {name}[{size}]{note};"

    def _element(self, b: Buffer) -> str:
        """C type of the elements of an array declared inside the kernel."""
        if self.expr.held_in_float(b):
            return c_type(b.dtype, self.d)
        if b.scope is Scope.BARRIER:
            return "unsigned long long"
        if b.dtype in self.d.held:
            return self.d.held[b.dtype]
        return self.expr.vector_type(b.dtype, b.lanes) if b.lanes > 1 else self.d.types[b.dtype]

    # --- statements

    def stmt(self, s: Stmt, depth: int) -> list[str]:
        """Lines of text for a statement, indented ``depth`` times."""
        pad = INDENT * depth
        match s:
            case Seq():
                return [line for x in s.stmts for line in self.stmt(x, depth)]
            case Store():
                return [f"{pad}{self.store(s)};"]
            case Loop():
                return self.loop(s, depth)
            case Prefetch():
                return [pad + self.prefetch(s)]
            case If():
                cond, then = s.cond, s.then
                while isinstance(then, If):  # as when nested: the second is not evaluated where the first fails
                    cond, then = binary("and", cond, then.cond), then.then
                return [*self._block(f"{pad}if ({self.expr(cond)})", then, depth)]
            case Alloc():
                self.open.append(s.buffer)
                inner = self.stmt(s.body, depth)  # first, so that alignments are known
                self.open.pop()
                return (
                    inner if s.buffer.scope in (Scope.SHARED, Scope.BARRIER) else [pad + self.array(s.buffer), *inner]
                )
            case Barrier() if Scope.CLUSTER in s.scopes:
                name = "tir_meet_cluster" if s.scopes == (Scope.CLUSTER,) else "tir_sync_cluster"
                self.expr.need(name)
                return [f"{pad}{name}();"]
            case Barrier() if s.threads:
                self.expr.need("tir_sync_some")
                number = "1" if s.turn is None else self.expr(binary("+", s.turn, 1))
                return [f"{pad}tir_sync_some({number}, {s.threads});"]
            case Barrier():
                return [pad + (self.d.barrier_global if Scope.GLOBAL in s.scopes else self.d.barrier)]
            case Let():
                lines, below = list[str](), s.body
                while isinstance(s, Let):  # there may be many, one inside the other
                    kind, value = self.expr.vector_type(s.var.dtype, s.var.lanes), self.expr.number_of(s.value)
                    lines.append(f"{pad}const {kind} {self.names.variable(s.var)} = {value};")
                    s = below = s.body
                return lines + self.stmt(below, depth)
            case CommitGroup() | WaitGroup() | Fence() | Arrive() | Await():
                sums, given = ([b for b in self.open if b in some] for some in (self.sums, self.given))
                return [pad + line for line in order_lines(s, self.expr, sums, given)]
            case InitBarriers():
                return [pad + line for line in init_lines(s, self.expr)]
            case Roles():
                return self.roles(s, depth)
            case IntrinCall():
                return [pad + line for line in instruction_lines(s, self.expr)]
        raise LoweringError(Problem("codegen.not-lowered", f"{type(s).__name__} has no lowering for {self.d.name} yet"))

    @property
    def _most(self) -> int:
        """Number of float32 in the widest vector that the kernel may use."""
        return self.expr.target.vector_bytes // 4 if self.d.family == "c" else 16

    def loop(self, s: Loop, depth: int) -> list[str]:
        """Lines of a for loop, its pragma included, indented ``depth`` times."""
        if s.kind is Kind.SERIAL:
            cut = ended_by_data(s, self.expr.arith)
            if cut is None and self.expr.target.kind == "cpu" and math.prod(self.k.block) == 1:
                cut = ended_by_place(s, self.expr.arith)
            if cut is not None:
                return self.stmt(cut, depth)
        pad, v = INDENT * depth, self.names.variable(s.var)
        if self.d.has_vectors and self.expr.target.kind == "cpu" and (found := across(s, self.expr.arith, self._most)):
            return self._transposed(found, depth)
        pragma = []
        if s.kind is Kind.UNROLL:
            pragma = [pad + self.d.unroll.format(n=max(1, as_int(s.extent)))]
        elif by := UnrollBy.of(s).factor:
            pragma = [pad + self.d.unroll_by.format(n=by)]
        head = f"{pad}for ({self.d.types['index']} {v} = 0; {v} < {self.expr(s.extent, SUM)}; ++{v})"
        note = [f"{pad}// {why}"] if (why := Remark.of(s).why) else []
        return [*note, *pragma, *self._block(head, s.body, depth)]

    def _index(self, axis: Loop) -> str:
        """C expression of a hardware index such as ``blockIdx.x``; blocks of a cluster are adjacent along x."""
        text = self.d.index[axis.kind].format(cluster=self.k.cluster)
        return f"{text} / {self.k.cluster}" if axis.kind is Kind.BLOCK_X and self.k.cluster > 1 else text

    def roles(self, s: Roles, depth: int) -> list[str]:
        """Lines of an ``if … else if`` on the warpgroup's number, one branch per warp-specialized role."""
        pad, inner = INDENT * depth, INDENT * (depth + 1)
        out, threads = [], math.prod(self.k.block)
        for n, r in enumerate(s.roles):
            cond = f"if ({self.group} < {r.first + r.extent}) " if n + 1 < len(s.roles) else ""
            out.append(f"{pad}{'} else ' if n else ''}{cond}{{  // {r.name}")
            out += [inner + line for line in registers_line(r, threads, self.expr)]
            number = f"{self.group} - {r.first}" if r.first else self.group
            numbers = {r.var: number}
            if r.turn is not None:
                numbers = {
                    r.turn: f"{number} / {r.at_once}" if r.at_once > 1 else number,
                    r.var: f"{number} % {r.at_once}",
                }
            used = set(find(r.body, Var))
            out += [f"{inner}const {self.d.types['index']} {self.names.variable(v)} = {text};"
                    for v, text in numbers.items() if v in used]  # fmt: skip
            one = f"{inner}if (threadIdx.x == 0)"
            out += self._block(one, r.body, depth + 1) if r.one else self.stmt(r.body, depth + 1)
        return [*out, f"{pad}}}"]

    def _transposed(self, found: Across, depth: int) -> list[str]:
        """Lines of a C block that transposes a register tile and then runs the loop that reads the tile's columns."""
        outer, pad, columns = INDENT * depth, INDENT * (depth + 1), found.made()
        address, name = self.expr.address, self.names.buffer(columns)
        side, function = found.side, f"tir_transpose_{found.side}x{found.side}"
        self.expr.helpers[function] = TRANSPOSE[self.d.family][side]
        for b in (found.buffer, columns):
            self.expr.aligned[b] = max(self.expr.aligned.get(b, 0), 4 * side)
        calls = [
            f"{pad}{function}({address(self.names.buffer(found.buffer), found.start(r, c))}, {found.pitch}, "
            f"{address(name, const(c * found.rows + r, 'index'))}, {found.rows});"
            for c in range(0, found.columns, side)
            for r in range(0, found.rows, side)
        ]
        loop = self.loop(found.loop.replace(body=found.reading(columns)), depth + 1)
        return [f"{outer}{{", pad + self.array(columns), *calls, *loop, f"{outer}}}"]

    def _block(self, head: str, body: Stmt, depth: int) -> list[str]:
        """Lines of ``head`` and its body, with braces only if C requires them."""
        inner = self.stmt(body, depth + 1)
        single = isinstance(body, Store) or (
            isinstance(body, Loop | If) and not inner[0].lstrip().startswith(("#", "//", "const "))
        )
        if single:
            return [head, *inner]
        return [f"{head} {{", *inner, f"{INDENT * depth}}}"]

    def prefetch(self, s: Prefetch) -> str:
        """C text that prefetches a cache line, by a macro that is empty for compilers without prefetches."""
        self.expr.helpers["FETCH"] = FETCH
        return f"FETCH({self.expr.address(self.names.buffer(s.buffer), s.index[0])});"

    def atomic_add(self, s: Store) -> str:
        """C text of the call, without semicolon, that adds the Store's value atomically to its element."""
        at, value = self.expr.address(self.names.buffer(s.buffer), s.index[0]), self.expr(s.value)
        return self.expr.spelled(self.d.atomics[s.buffer.dtype], at=at, x=value)

    def store(self, s: Store) -> str:
        """C text of a Store, without semicolon: an assignment, compound (``+=``) for in-place updates, or a call."""
        b, i, value = s.buffer, s.index[0], s.value
        if s.later:
            return self.expr.copy_async(s)
        if s.adds:
            return self.atomic_add(s)
        if self.d.family == "cuda" and isinstance(value, Load) and moves(s):
            as_it_is = self.expr.as_it_is(b, i, value)
            if as_it_is:
                return as_it_is
        if (b in self.looked_at or self.d.wraps) and DTYPES[b.dtype].kind == "i":
            return self.expr.store(b, i, self.expr.number_of(value))
        plain = b.dtype not in WIDENED and b.dtype != "bool"
        if (
            plain
            and isinstance(value, Binary)
            and value.op in ("+", "-", "*", "&", "|", "^")
            and isinstance(value.a, Load)
            and value.a.buffer is b
            and same(value.a.index[0], i)
        ):
            narrow = DTYPES[b.dtype].kind in "iu" and DTYPES[b.dtype].bits < 32
            if not narrow:
                target = self.expr.store(b, i, "").removesuffix(" = ")
                if not target.startswith("vstore"):
                    return f"{target} {value.op}= {self.expr(value.b, UNARY if value.op == '*' else 0)}"
        return self.expr.store(b, i, self.expr.rounded_for(b, value))


# Blocks that store equal values at the same places: those of a split whose last tile is moved back.

MEETS = """\
/* Blocks store equal values where they meet: in C a race, which the thread sanitizer is not to report. */
#ifndef TIR_MEETS
#if defined(__has_feature)
#define TIR_HAS(x) __has_feature(x)
#else
#define TIR_HAS(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || TIR_HAS(thread_sanitizer)
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define TIR_MEETS(call) \\
  (AnnotateIgnoreWritesBegin(__FILE__, __LINE__), (call), AnnotateIgnoreWritesEnd(__FILE__, __LINE__))
#else
#define TIR_MEETS(call) (call)
#endif
#endif"""
"""Macro that hides all stores of a kernel from the thread sanitizer; they stay plain: vectors have no atomic ones."""


def blocks_meet(k: Kernel) -> bool:
    """True if two blocks of ``k`` may store to the same address; both store the same value then (``Store.repeats``)."""
    blocks = {axis.var for axis in k.axes}
    moved = (
        m
        for s in find(k.body, Store)
        if s.repeats and s.buffer.scope is Scope.GLOBAL
        for index in s.index
        for m in find(index, Binary)
    )
    return prod(most(as_expr(n)) for n in k.grid) > 1 and any(
        m.op == "min" and blocks & set(find(m, Var)) for m in moved
    )


# --- 32 or 64 bits


INT_MIN, INT_MAX = -(2**31), 2**31 - 1
DATA: Interval = (0, 0)
"""Range assumed of loaded index values: launches check that they are in range."""

_ENDS: dict[str, Callable[[float, float], float]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "min": min, "max": max,
}  # fmt: skip


def fits_int(axes: Iterable[Loop], body: Stmt) -> bool:
    """True if all indices of a kernel and their subexpressions fit int32 by loop ranges; loaded values count as 0."""
    return _Ranges(axes, body).fit


class _Ranges:
    """Ranges of all indices in a kernel and of their subexpressions; ``fit`` is True if all are within int32."""

    def __init__(self, axes: Iterable[Loop], body: Stmt) -> None:
        found = loop_ranges([*axes, *find(body, Loop)])
        self.of = {v: DATA if math.isinf(ends[1]) else ends for v, ends in found.items()}
        self.of |= {v: (0, count - 1) for r in find(body, Role) for v, count in r.numbers.items()}
        self.known: dict[Expr, Interval] = {}
        self.fit = all(high < INT_MAX for _, high in self.of.values())  # a loop counts one further
        for let in find(body, Let):  # those that others are made of come first
            if let.var.dtype == "index":
                self.of[let.var] = self(let.value)
        for e in find(body, Binary) if self.fit else ():
            if e.dtype == "index":
                self(e)

    def __call__(self, e: Expr) -> Interval:
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        if isinstance(e, Var):
            return self.of.get(e) or e.bounds or DATA
        if e not in self.known:
            self.known[e] = low, high = self._of(e)
            self.fit = self.fit and low >= INT_MIN and high <= INT_MAX
        return self.known[e]

    def _of(self, e: Expr) -> Interval:
        if isinstance(e, Ramp):
            low, high = self(e.base)
            return low, high + e.lanes - 1
        if isinstance(e, Unary) and e.op == "-":
            low, high = self(e.a)
            return -high, -low
        if isinstance(e, Select):
            return _hull(self(e.a), self(e.b))
        if not isinstance(e, Binary) or e.dtype != "index":
            return DATA
        a, b = self(e.a), self(e.b)
        if e.op in _ENDS:
            ends = [_ENDS[e.op](x, y) for x in a for y in b]
            return min(ends), max(ends)
        if e.op == "<<":
            return _hull(a, (a[0] * 2 ** min(b[1], 64), a[1] * 2 ** min(b[1], 64)))
        if e.op == "%" and b[0] > 0:
            return 0, b[1] - 1
        if e.op in ("|", "^"):  # bits of either
            bits = max(int(x).bit_length() for x in (*a, *b))
            return -(2**bits) if min(a[0], b[0]) < 0 else 0, 2**bits - 1
        return _hull(a, _hull(b, DATA))  # quotients, and fewer bits, are no larger


def _hull(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])
