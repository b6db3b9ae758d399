"""tensorir against cuBLAS, cuDNN and Triton on one GPU: what ``run.py`` beside this folder is made of."""
