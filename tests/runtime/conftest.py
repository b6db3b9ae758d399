import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Each test has its own artifact cache."""
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def device():
    """The embedded CPU device."""
    from tensorir.errors import DeviceError
    from tensorir.runtime.device import open_device

    try:
        return open_device("opencl")
    except DeviceError as error:
        pytest.skip(f"no OpenCL CPU device: {error.problems[0].message}")
