"""Interpreters in NumPy: declarations as such, and lowered kernels thread by thread with race and bounds checks."""
