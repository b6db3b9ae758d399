"""``Prices``: cycles that a CPU core takes for the parts of a kernel, which cost models add up.

Cycles are those of ``Machine.clock``, which understates the clock of a busy core. All were fitted to measurements at
rest, on two cores of a virtual server with vectors of 64 bytes; those of products by
``benchmarks/tuner/judge_cpu_model.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def _functions() -> dict[str, float]:
    return {"exp": 16.5, "exp2": 15.0, "log": 18.0, "log2": 18.0, "tanh": 27.0, "erf": 27.0, "sin": 16.5, "cos": 16.5,
            "pow": 33.0, "sqrt": 10.0, "rsqrt": 10.0}  # fmt: skip


@dataclass(frozen=True)
class OperationPrices:
    """Cycles of operations on one full vector, by which any loop tree is counted (``automatic/counts.py``).

    issue:     vectors of simple operations, loads or stores that are issued per cycle
    functions: of math functions;  function: of others;  crowded: slowdown where a stage calls several, for registers
    divide:    of a division
    extreme:   simple operations of a minimum or maximum of floats, with its propagation of NaN: 3.4 to 6.2 in windows,
               rows and products, by compiler
    quotient:  simple operations of a quotient or remainder by a constant that is no power of two
    loads:     loads and shuffles of a vector of elements at a distance, by that distance
    late_read: of a load that waits for two pending stores, in a store buffer of ``pending_bytes``
    second_cache: additional, of an access to a local array that exceeds half of the L1 cache
    register_bytes: of a local array that is assumed to stay in registers
    overlap:   fraction of the shorter of compute time and memory time that is not hidden by the longer one
    """

    issue: float = 2.5
    functions: Mapping[str, float] = field(default_factory=_functions, hash=False)
    function: float = 4.0
    crowded: float = 1.1
    divide: float = 7.0
    extreme: float = 4.5
    quotient: float = 5.0
    loads: Mapping[int, float] = field(default_factory=lambda: {0: 1.0, 1: 1.0, -1: 2.0, 2: 3.0}, hash=False)
    late_read: float = 8.0
    pending_bytes: int = 4096
    second_cache: float = 2.0
    register_bytes: int = 2048
    overlap: float = 0.35


@dataclass(frozen=True)
class StreamPrices:
    """Cycles of the parts of loops over independent cells, of rows and of scans.

    step, leave: of a loop iteration's overhead, and of a loop's exit
    test:     of a guard per lane;  shuffle: of a load with a condition per lane;  pick: of every second element
    narrow:   cost of an operation on vectors of up to 32 bytes relative to 64: three are issued per cycle, not two
    wide_moves: cost of a lane shuffle in vectors of 64 bytes relative to 32
    term:     of a term of a scatter, or of a vector of them;  joined: to read and store an element of a phase
    uneven:   fraction of a block by which cores finish apart
    rows:     bytes that could be read contiguously in the time of a jump to another row
    """

    step: float = 1.0
    leave: float = 10.0
    test: float = 0.55
    shuffle: float = 4.0
    pick: float = 1.5
    narrow: float = 0.65
    wide_moves: float = 1.6
    term: float = 3.0
    joined: float = 2.0
    uneven: float = 0.45
    rows: int = 110


@dataclass(frozen=True)
class RollingPrices:
    """Cycles of the parts of attention in one pass.

    multiply: of a multiply-add of vectors, loads included;  scalar: of one outside of vectors, loads included
    weight:   multiply-adds that a score costs on its way to a weight;  rescale: those of a partial result per tile
    near:     scores and partial results of a block that double its cycles: they leave the nearest caches
    """

    multiply: float = 1.5
    scalar: float = 2.1
    weight: float = 24.0
    rescale: float = 4.0
    near: int = 1 << 16


@dataclass(frozen=True)
class ProductPrices:
    """Cycles of the parts of a matrix product ``a @ b`` in register tiles over panels of b.

    load:     of a vector, or of an element for all lanes;  folded: of a scalar operand read by its only multiply-add
    place:    to compute the address of a row in an unevenly spaced tile, beyond ``pointers`` rows, which stay in
              registers;  uneven: slowdown of such a tile of windows
    second_line, third_line: additional, per 64 bytes of b from the L2 cache, or across lines; from beyond it
    sum:      of a vector of accumulators stored to block memory, or loaded from there
    copy, turn, strided, gather: to pack an element of b: in vectors, transposed in registers, one by one, from runs
              shorter than vectors;  scattered: to read one in place from such runs
    ragged:   to store an element lane by lane, as for all vectors if the last one of a row is incomplete
    leaving, alone: to store a result transposed in registers, in vectors of rows, and one by one
    gap_line: per 64 bytes of gaps between the elements of a that each panel reads
    far_panels: of the first panel of a block beyond the L2 cache, until prefetching sets in
    far_stream: per 64 bytes of panels from beyond the L2 cache;  far_line: that a core reads for the first time
    far_run:  additional per run of these, which is not prefetched;  packed: per 64 bytes from one kernel to another
    few:      slowdown of fewer than two blocks per core
    crowding: slowdown by each row of a tile beyond those that the sets of the L1 cache hold
    across:   per lane of a horizontal sum;  four: factor on it if four adjacent results are stored together
    spilled:  additional, of a multiply-add whose vectors of both operands do not fit in registers
    kept:     per element of the padded image that a block stages
    l1_share: of the L1 cache, for a panel of b that stays there while rows of a pass by
    far_bytes: of b from which on panels come from beyond the L2 cache
    """

    load: float = 0.2775
    folded: float = 0.1725
    pointers: int = 12
    place: float = 11.25
    uneven: float = 1.04
    second_line: float = 0.315
    third_line: float = 1.2
    sum: float = 2.4
    copy: float = 0.1425
    turn: float = 0.5025
    strided: float = 1.2
    gather: float = 0.4275
    scattered: float = 0.9
    ragged: float = 0.975
    leaving: float = 0.45
    alone: float = 1.875
    gap_line: float = 4.5
    far_panels: float = 2250.0
    far_stream: float = 8.25
    far_line: float = 5.4
    far_run: float = 7.425
    packed: float = 18.75
    few: float = 1.02
    crowding: float = 0.1
    across: float = 0.9375
    four: float = 0.8
    spilled: float = 0.1875
    kept: float = 0.45
    l1_share: float = 0.75
    far_bytes: int = 1344 * 1024


@dataclass(frozen=True)
class WindowPrices:
    """Cycles of the parts of a reduction over windows in register tiles.

    port_bytes: of one load, of which a core issues two per cycle
    element:  of a scalar load into one lane
    broadcast: of an element for all lanes, mostly kept in a register between tiles
    load, pick: of a contiguous ``port_bytes``; of every second element of twice as many
    loaded:   factor on loads, as real clocks are faster;  column: slowdown of a tile per column beyond the first
    crowded:  accumulators beyond ``sums`` at which a tile takes twice as long, since loaded values spill
    rows, lanes, lanes_alone: relative slowdown of a border tile, by conditions on rows, on lanes, and on lanes that are
              loaded one by one
    block, tile: of overhead;  pack: per cell that a block packs;  stage: per image element that it widens
    few_reads: reads of a cell up to which cells of a map one after another are as fast: a tile goes through all of its
              rows at once, more of them than caches fetch ahead
    """

    port_bytes: int = 32
    element: float = 0.75
    rows: float = 0.2
    lanes: float = 0.5
    lanes_alone: float = 3.0
    broadcast: float = 0.2
    load: float = 0.5
    pick: float = 1.0
    loaded: float = 0.7
    column: float = 0.02
    crowded: float = 48.0
    block: float = 290.0
    tile: float = 6.0
    pack: float = 1.0
    stage: float = 8.0
    few_reads: int = 6


@dataclass(frozen=True)
class WinogradPrices:
    """Cycles of the parts of Winograd's convolution.

    block:    of overhead;  few: slowdown of fewer than two blocks per core
    shared, narrow: of a multiply-add whose loads are shared, of 64-byte vectors and of shorter ones
    delay:    additional per accumulator that a tile has fewer than ``sums``
    first_step, second_step: per vector of a panel and reduction step, from the L1 and the L2 cache
    written_out: unrolled multiply-adds above which compilers spill accumulators;  spilled: additional of each then
    turned, copied: per image element stored channel-last, from contiguous pixels (NCHW) and channels (NHWC)
    scattered, written: per result element stored along pixels (NCHW), and along channels
    filter, far_filter: per byte of filter read and transformed filter written, within ``cached`` bytes and beyond
    transformed: per element of the transformed image, for tiles of four outputs and filters of three taps
    loaded:   of a load of a 64-byte vector, or of a broadcast
    handed:   per element of the transformed image stored by one kernel and loaded by another
    near_weights, far_weights, fetched_weights, cold_weights: bytes of weights per cycle, from the L2 cache, from
              beyond, from there if they are prefetched, and of filters of more than ``cold_bytes``
    back, far_back, far_back_narrow: per element on the way back, from few and from many bytes of a block, with vectors
              of 64 bytes and of 32: measured on cores of two generations
    """

    block: float = 300.0
    few: float = 1.05
    shared: float = 0.56
    narrow: float = 0.5
    delay: float = 0.22
    first_step: float = 0.05
    second_step: float = 0.8
    written_out: int = 200
    spilled: float = 0.26
    turned: float = 0.65
    copied: float = 0.2
    scattered: float = 0.9
    written: float = 0.3
    filter: float = 0.16
    far_filter: float = 0.45
    transformed: float = 1.6
    loaded: float = 0.8
    handed: float = 1.0
    cached: int = 4 << 20
    near_weights: float = 32.0
    far_weights: float = 16.0
    fetched_weights: float = 200.0
    cold_weights: float = 6.0
    cold_bytes: int = 16 << 20
    back: float = 8.0
    far_back: float = 11.0
    far_back_narrow: float = 16.0


@dataclass(frozen=True)
class Prices:
    """Prices of a CPU core by kind of kernel.

    multiply: cycles of a multiply-add of vectors
    sum, chain: between dependent additions to one accumulator, and between dependent multiply-adds
    sums:     independent accumulators that keep a core busy: two multiply-adds per cycle, a latency of four cycles
    handover: cycles until all cores have started on a kernel and have its operands in their caches, which it reads
              many times; until they have started alone, it is ``Machine.wake_s``
    """

    multiply: float = 0.3525
    sum: float = 3.0
    chain: float = 4.0
    sums: int = 8
    handover: float = 57_750.0
    operation: OperationPrices = field(default_factory=OperationPrices)
    stream: StreamPrices = field(default_factory=StreamPrices)
    rolling: RollingPrices = field(default_factory=RollingPrices)
    product: ProductPrices = field(default_factory=ProductPrices)
    window: WindowPrices = field(default_factory=WindowPrices)
    winograd: WinogradPrices = field(default_factory=WinogradPrices)
