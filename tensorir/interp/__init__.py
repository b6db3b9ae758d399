"""Programs run in NumPy: the declaration itself, and lowered kernels under memory that remembers."""
