"""The schedule primitives as functions on programs, one module for each group."""
