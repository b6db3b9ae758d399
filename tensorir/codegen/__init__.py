"""Code generation: lowered kernels to readable CUDA, OpenCL or C text."""
