"""Algorithms for ``s.redeclare``: Winograd, stream-K, tiled scans, private scatters in place of a declaration."""
