"""The search for the fastest configuration: spaces, strategies, measurements in child processes, and the log."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
