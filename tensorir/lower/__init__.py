"""From scheduled stages to kernels: one pass a module, in the order of ``pipeline``."""
