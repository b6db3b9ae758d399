"""Built-in algorithms for ``s.redeclare``: Winograd, stream-K, scans, scatters and softmax in parts, tables, phases."""
