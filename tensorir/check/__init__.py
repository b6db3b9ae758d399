"""Whether a scheduled program computes what was declared, at several levels of cost."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
