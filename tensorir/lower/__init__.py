"""Lowering: scheduled programs to kernels, one pass per module, in the order of ``pipeline``."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
