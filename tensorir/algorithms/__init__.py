"""Built-in algorithms for ``s.redeclare``: Winograd, stream-K, scans, scatters, split softmax, tables, ranges."""
