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


@pytest.fixture
def table():
    """Instructions declared in a test are forgotten after it."""
    from tensorir.intrin.intrin import INTRINSICS, intrinsic

    intrinsic("opencl.dot.f32x4")
    before = dict(INTRINSICS)
    yield INTRINSICS
    INTRINSICS.clear()
    INTRINSICS.update(before)
