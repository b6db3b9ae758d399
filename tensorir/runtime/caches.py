"""Places for the caches of others, who fail where they cannot write: PoCL has no device then, CuPy is not imported."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def ensure_cache(variable: str, default: str) -> None:
    """Name a folder in the environment where the one that is named, or else ``default``, cannot be written.

    That is one of this user alone, for the kernels in it are run. Without any, nothing is changed.
    """
    folder = Path(os.environ.get(variable) or os.path.expanduser(default))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError:
        pass
    try:
        os.environ[variable] = str(_own(variable.partition("_")[0].lower()))
    except OSError:  # there is no place for temporary files either
        return


def _own(name: str) -> Path:
    """A folder for temporary files that nobody else may write, the same one every time where that is possible."""
    user = os.geteuid() if hasattr(os, "geteuid") else os.getpid()
    place = Path(tempfile.gettempdir(), f"tensorir-{name}-{user}")
    place.mkdir(mode=0o700, exist_ok=True)
    about = place.lstat()
    mine = about.st_uid == user and stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
    return place if mine else Path(tempfile.mkdtemp(prefix=f"tensorir-{name}-"))
