"""From scheduled stages to kernels: one pass a module, in the order of ``pipeline``."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
