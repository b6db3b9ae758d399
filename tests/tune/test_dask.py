"""A cluster of real worker processes, one of which is killed and one of which hangs during the run."""

import os
import signal
from pathlib import Path

import flight_zoo
import pytest
from searching import search

import tensorir as tir
from tensorir.api.origin import from_file
from tensorir.api.places import DaskPlaces, places_of
from tensorir.codec import encode
from tensorir.runtime.device import devices
from tensorir.tune.flight import Flights, Sent
from tensorir.tune.log import LogReader, LogWriter, RunIdentity
from tensorir.tune.space import Space

distributed = pytest.importorskip("distributed", reason="pip install tensorir[dask]")

ME = RunIdentity("own n=8", "d1g357", {"name": "cpu", "driver": "1"}, {"tensorir": "0.1.0"})
ZOO = str(Path(__file__).parents[1] / "api" / "zoo.py")


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """A folder whose file ``hung`` names a process that was stopped."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def client(hung):
    cluster = distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    )
    client = distributed.Client(cluster)
    yield client
    if (hung / "hung").exists():  # nobody waits for a stopped process
        os.kill(int((hung / "hung").read_text()), signal.SIGKILL)
    client.close()
    cluster.close()


@pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)
@pytest.mark.filterwarnings("ignore:several workers measure")
def test_kernels_are_measured_by_the_workers(client, tmp_path):
    work = from_file(ZOO, "product", {"n": 16})
    executor = client.get_executor(workers=sorted(client.nthreads())[:1])
    outcome = work.tune(budget="60s", log=str(tmp_path), trials=2, executor=executor)
    assert outcome.counts == {"ok": 2} and outcome.best.confirmed and outcome.baseline["name"] == "numpy"
    assert {r.detail["place"] for r in outcome.records} <= set(client.nthreads())
    assert all(r.detail["host"] and r.device["id"] for r in outcome.records)
    assert work.load(log=str(tmp_path)).source


def test_a_cluster_is_no_executor(client):
    with pytest.raises(tir.DeclarationError) as caught:
        places_of(client.cluster, None, {})
    assert caught.value.code == "tune.executor"


def test_one_worker_killed_and_one_hung(client, hung):
    places = DaskPlaces(client, {}, flight_zoo.dangerous)
    flights = Flights(places, prepare=lambda trial: Sent({**encode(trial), "folder": str(hung)}), trial_timeout=3.0)
    space = Space(x=range(40), default={"x": 3})
    with LogWriter(hung / "log", ME.workload) as log:
        outcome = search("random", {"a": space}, None, identity=ME, log=log, flights=flights)
    flights.close()
    assert (hung / "killed").exists() and (hung / "hung").exists()
    logged = list(LogReader(hung / "log").records())
    assert sorted(r.config["x"] for r in logged) == list(range(40)) and outcome.counts == {"ok": 40}
    assert outcome.best.config == {"x": 7} and outcome.stopped == "exhausted"
    assert len({r.detail["place"] for r in logged}) >= 2
    bad = {int((hung / name).read_text()) for name in ("killed", "hung")}
    assert not bad & {r.detail["pid"] for r in logged if r.config["x"] in (5, 9)}
