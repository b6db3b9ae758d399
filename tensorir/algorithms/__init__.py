"""Built-in algorithms for ``s.redeclare``: Winograd, stream-K, tiled scan, private scatter, split softmax, tables."""
