"""Autotuning: configuration spaces, search strategies, measurements in worker processes, and the tuning log."""

from tensorir.errors.habits import Folder as _Folder

_Folder.of(__name__)
