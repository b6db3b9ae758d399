"""Kernels as readable CUDA and OpenCL text."""
