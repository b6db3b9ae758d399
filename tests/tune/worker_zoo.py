"""A worker whose requests misbehave on demand; started by test_process.py."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

from tensorir.tune.process import bound_memory, serve


def handler(message, progress):
    progress(message.get("phase", "schedule"))
    match message["do"]:
        case "echo":
            return {
                "status": "ok",
                "echo": message.get("value"),
                "argv": sys.argv[1:],
                "path": sys.path,
                "env": dict(os.environ),
            }
        case "abort":
            print(message.get("words", "last words"), flush=True)
            os.abort()
        case "segv":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(0)
        case "sleep":
            time.sleep(message.get("seconds", 10_000))
            return {"status": "ok"}
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                pass
        case "raise":
            raise KeyError("not here")
        case "memory":
            return {"n": len(bytearray(1 << 40))}
        case "bounded":
            bound_memory(1 << 28)
            return {"n": len(bytearray(1 << 30))}
        case "nan":
            return {"max_err": float("nan"), "shape": (1, 2)}
        case "flood":
            for _ in range(400):
                os.write(1, b"\x00\xff\x1b[31m garbage \n" * 4096)
            os.write(2, b"the end")
            return {"status": "ok"}
        case "flood-forever":
            while True:
                os.write(1, b"x" * 65536)
        case "grandchild":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            progress(f"grandchild {child.pid}")
            time.sleep(1000)
        case "escape":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return {"status": "ok", "pid": child.pid}
        case "close":
            os.closerange(3, 64)
            time.sleep(1000)
        case "garbage":
            for fd in range(3, 256):  # the pipe keeps the number that it has in the parent
                with contextlib.suppress(OSError):
                    os.write(fd, b"\xff" * 64)
            time.sleep(1000)
        case "big":
            return {"text": "x" * (32 << 20)}
        case "object":
            return {"thing": object()}
    return {}


if __name__ == "__main__":
    if "broken" in sys.argv:
        raise ImportError("no such driver")
    if "late" in sys.argv:
        time.sleep(1000)
    serve(handler)
