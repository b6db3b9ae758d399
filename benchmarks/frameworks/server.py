"""An exported kernel in a worker of LitServe, called by ONNX Runtime: answers, latencies and memory.

    python benchmarks/frameworks/server.py [--requests 1000] [--clients 8] [--rounds 3] [--folder DIR]

Needs litserve and onnxruntime. The server's processes cannot import tensorir. After a round of warming up it prints,
for each round, how many answers were wrong, the latencies, and by how much the memory of all processes has grown.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

N = 32
PAGE = os.sysconf("SC_PAGE_SIZE")


def serve(folder, port):
    """Answer POST /predict {"a": N * N numbers} with those of a @ b; GET /about says what the worker has loaded."""
    sys.modules["tensorir"] = None  # an import of it is an error
    sys.path.insert(0, str(Path(folder).resolve().parent))
    import litserve

    class Kernel(litserve.LitAPI):
        def setup(self, device):
            from importlib import import_module

            self.program = import_module(f"{Path(folder).name}.door_onnxruntime").Program(threads=1)
            self.b = np.load(Path(folder).parent / "b.npy")

        def decode_request(self, request):
            return np.array(request["a"], np.float32).reshape(N, N)

        def predict(self, x):
            return self.program(x, self.b)

        def encode_response(self, output):
            here = [m for m, found in sys.modules.items() if m.split(".")[0] == "tensorir" and found is not None]
            return {"c": output.ravel().tolist(), "tensorir": here}

    server = litserve.LitServer(Kernel(), accelerator="cpu", workers_per_device=1)
    server.run(port=port, host="127.0.0.1", generate_client_file=False, log_level="warning")


def export(folder):
    """Write the kernel, and the matrix that the server multiplies by."""
    import tensorir as tir

    b = np.random.default_rng(7).integers(-4, 5, (N, N)).astype(np.float32)
    np.save(folder / "b.npy", b)
    work = tir.ops.matmul(m=N, n=N, k=N)
    work.schedule(target="c").export(folder / "mm", to="onnxruntime")
    return b


class Server:
    """The server in processes of its own, until the end of a ``with``."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--serve",
            str(folder / "mm"),
            "--port",
            str(self.port),
        ]
        self.log = open(folder / "server.log", "w+")  # noqa: SIM115 - to the end of the processes
        self.process = subprocess.Popen(command, start_new_session=True, stdout=self.log, stderr=self.log, cwd=folder)

    def __enter__(self):
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.get("/health") == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        self.__exit__()
        self.log.seek(0)
        raise RuntimeError(f"the server does not start:\n{self.log.read()[-3000:]}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)  # SIGTERM would leave its workers behind
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        return connection.getresponse().status

    def memory(self):
        """Bytes that its processes hold."""
        found = 0
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    found += int((entry / "statm").read_text().split()[1]) * PAGE
            except (OSError, ValueError):
                continue
        return found


def client(server, b, requests, seed):
    """Seconds of each request of one client, and what was wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    rng, times, wrong = np.random.default_rng(seed), [], []
    for _ in range(requests):
        a = rng.integers(-4, 5, (N, N)).astype(np.float32)
        body = json.dumps({"a": a.ravel().tolist()})
        start = time.perf_counter()
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        times.append(time.perf_counter() - start)
        if answer.status != 200:
            wrong.append(f"status {answer.status}: {text[:200]!r}")
            continue
        found = json.loads(text)
        if found["tensorir"] or not np.array_equal(np.array(found["c"], np.float32).reshape(N, N), a @ b):
            wrong.append(f"modules {found['tensorir']}, or a wrong product")
    return times, wrong


def load(server, b, requests, clients, seed=0):
    """Seconds of all requests, from several clients at a time; what was wrong."""
    with ThreadPoolExecutor(clients) as pool:
        share = [requests // clients + (n < requests % clients) for n in range(clients)]
        made = list(pool.map(lambda n: client(server, b, share[n], seed + n), range(clients)))
    return [t for times, _ in made for t in times], [w for _, wrong in made for w in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the kernel is written")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.port)
        return
    folder = Path(given.folder or tempfile.mkdtemp())
    b = export(folder)
    with Server(folder) as server:
        load(server, b, given.requests, given.clients)
        before = server.memory()
        print(f"after warming up: {before / 1e6:.1f} MB in all processes")
        for n in range(given.rounds):
            times, wrong = load(server, b, given.requests, given.clients, 100 * (n + 1))
            now = server.memory()
            middle, late = np.median(times) * 1e3, np.quantile(times, 0.99) * 1e3
            print(f"{len(times)} requests of {given.clients} clients: {len(wrong)} wrong, median {middle:.1f} ms,"
                  f" 99 % {late:.1f} ms, memory {(now - before) / 1e6:+.2f} MB")  # fmt: skip
            before = now
            for words in wrong[:3]:
                print(f"  {words}")


if __name__ == "__main__":
    main()
