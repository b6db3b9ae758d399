"""Rows of a matrix, one result or one row for each, scheduled by hand for processors and for GPUs.

``processors`` and ``gpus`` have functions of the shape and the target that give a Schedule; ``libraries`` the same by
NumPy and PyTorch. ``benchmarks/rows.py`` times the former, ``benchmarks/gpu/rows.py`` counts what the latter ask for.
"""
