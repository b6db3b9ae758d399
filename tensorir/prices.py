"""``Prices``: cycles that a CPU core takes for the parts of a kernel, which cost models add up.

Cycles are those of ``Machine.clock``, which understates the clock of a busy core. All were fitted to measurements at
rest, on two cores of a virtual server with vectors of 64 bytes; those of products by
``benchmarks/tuner/judge_cpu_model.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProductPrices:
    """Cycles of the parts of a matrix product ``a @ b`` in register tiles over panels of b.

    multiply: of a multiply-add of vectors;  load: of a vector, or of an element for all lanes
    latency:  between dependent multiply-adds;  folded: of a scalar operand read by its only multiply-add
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
    start:    of a launch in which only one core works
    across:   per lane of a horizontal sum;  four: factor on it if four adjacent results are stored together
    spilled:  additional, of a multiply-add whose vectors of both operands do not fit in registers
    kept:     per element of the padded image that a block stages
    l1_bytes: of a panel of b that stays in the L1 cache while rows of a pass by;  l2_bytes: of the L2 cache
    """

    multiply: float = 0.3525
    load: float = 0.2775
    latency: float = 3.0
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
    start: float = 57_750.0
    across: float = 0.9375
    four: float = 0.8
    spilled: float = 0.1875
    kept: float = 0.45
    l1_bytes: int = 24 * 1024
    l2_bytes: int = 1792 * 1024


@dataclass(frozen=True)
class WindowPrices:
    """Cycles of the parts of a reduction over windows in register tiles.

    port_bytes: of one load, of which a core issues two per cycle
    multiply: of a vector operation;  element: of a scalar load into one lane
    broadcast: of an element for all lanes, mostly kept in a register between tiles
    load, pick: of a contiguous ``port_bytes``; of every second element of twice as many
    loaded:   factor on loads, as real clocks are faster;  column: slowdown of a tile per column beyond the first
    crowded:  accumulators beyond ``sums`` at which a tile takes twice as long, since loaded values spill
    block, tile: of overhead;  pack: per cell that a block packs;  stage: per image element that it widens
    chain:    between dependent additions to one accumulator
    """

    port_bytes: int = 32
    multiply: float = 0.35
    element: float = 0.75
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
    chain: float = 4.0


@dataclass(frozen=True)
class WinogradPrices:
    """Cycles of the parts of Winograd's convolution.

    handover: until all cores have started on a kernel and have its data in their caches;  block: of overhead
    shared:   of a multiply-add of 64-byte vectors whose loads are shared;  delay: additional per accumulator that a
              tile has fewer than ``sums``
    first_step, second_step: per vector of a panel and reduction step, from the L1 and the L2 cache
    written_out: unrolled multiply-adds above which compilers spill accumulators;  spilled: additional of each then
    turned, copied: per image element stored channel-last, from contiguous pixels (NCHW) and channels (NHWC)
    scattered, written: per result element stored along pixels (NCHW), and along channels
    filter, far_filter: per byte of filter read and transformed filter written, within ``cached`` bytes and beyond
    transformed: per element of the transformed image, for tiles of four outputs and filters of three taps
    loaded:   of a load of a 64-byte vector, or of a broadcast
    handed:   per element of the transformed image stored by one kernel and loaded by another
    l1_bytes: of the L1 cache, of which panels take half;  near_bytes: of filters that stay in the L2 cache
    """

    handover: float = 80_000.0
    block: float = 300.0
    shared: float = 0.56
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
    l1_bytes: int = 32 * 1024
    near_bytes: int = 512 * 1024
    cached: int = 4 << 20


@dataclass(frozen=True)
class Prices:
    """Prices of a CPU core by kind of kernel.

    sums: independent accumulators that keep a core busy: two multiply-adds per cycle, a latency of four cycles
    """

    sums: int = 8
    product: ProductPrices = field(default_factory=ProductPrices)
    window: WindowPrices = field(default_factory=WindowPrices)
    winograd: WinogradPrices = field(default_factory=WinogradPrices)


CORE_PRICES = Prices()
"""Prices of the one kind of core that was measured."""
