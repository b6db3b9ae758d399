"""Built-in algorithms for ``s.redeclare``: Winograd, stream-K, scans and scatters in parts, tables, phases, ranges …"""
