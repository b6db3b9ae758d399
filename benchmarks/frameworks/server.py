"""An exported kernel in a worker of LitServe, called by ONNX Runtime: answers, latencies and memory.

    python benchmarks/frameworks/server.py [--python PYTHON] [--requests 1000] [--clients 8] [--rounds 3] [-o FILE]

PYTHON is an interpreter with litserve, onnxruntime and NumPy (this one, when none is given); the server's processes
cannot import tensorir. After rounds of warming up it prints, for each round, how many answers were wrong, the
latencies, and by how much the memory of all processes has grown. Exit status 1 where an answer is wrong, or where
memory grows by 1 MB per 1000 requests or more, on average.
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
WARMING = 2
PAGE = os.sysconf("SC_PAGE_SIZE")


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

    def __init__(self, folder, python):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        script = Path(__file__).with_name("server_worker.py").resolve()
        command = [python, str(script), str(folder / "mm"), str(self.port)]
        own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or python == sys.executable}
        self.log = open(folder / "server.log", "w+")  # noqa: SIM115 - to the end of the processes
        self.process = subprocess.Popen(
            command, start_new_session=True, stdout=self.log, stderr=self.log, cwd=folder, env=own
        )

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

    def post(self, body):
        """The status of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
        return connection.getresponse().status

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


def versions(python):
    """Of the packages that the server uses."""
    code = (
        "import json, platform; from importlib.metadata import version as v; print(json.dumps({'python': "
        "platform.python_version(), **{n: v(n) for n in ('litserve', 'onnxruntime', 'numpy')}}))"
    )
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or python == sys.executable}
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env=own).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="what runs the server")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
    from versus.environment import environment

    rows, document = [], {"schema": 1, "environment": environment(), "server": versions(given.python)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        b = export(folder)
        with Server(folder, given.python) as server:
            document["wrong_size"] = server.post('{"a": [1, 2]}')
            for seed in range(WARMING):
                load(server, b, given.requests, given.clients, seed)
            before = server.memory()
            print(f"after {WARMING} rounds of warming up: {before / 1e6:.1f} MB in all processes")
            document |= {"clients": given.clients, "processes_mb": round(before / 1e6, 1), "rows": rows}
            for n in range(given.rounds):
                times, wrong = load(server, b, given.requests, given.clients, 100 * (n + 1))
                now = server.memory()
                middle, late = (round(float(np.quantile(times, q)) * 1e3, 2) for q in (0.5, 0.99))
                row = {"requests": len(times), "wrong": len(wrong), "median_ms": middle, "p99_ms": late}
                rows.append(row | {"grown_mb": round((now - before) / 1e6, 3)})
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
                before = now
                for words in wrong[:3]:
                    print(f"  {words}")
    if given.output:
        given.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    grown = sum(r["grown_mb"] for r in rows) / sum(r["requests"] for r in rows) * 1000
    sys.exit(0 if grown < 1 and document["wrong_size"] == 400 and not any(r["wrong"] for r in rows) else 1)


if __name__ == "__main__":
    main()
