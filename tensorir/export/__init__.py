"""Export: folders with kernels that run without this package."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
