"""Checks of scheduled programs against their declarations, at several levels of cost."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
