import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch):
    """What a worker may have is a bound of its process: this one runs other tests afterwards."""
    monkeypatch.setattr("tensorir.api.worker_state.bound_memory", lambda _: None)
