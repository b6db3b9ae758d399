"""What fake devices do with a request; executors send these functions to other processes by name."""

import os
import signal
import time
from pathlib import Path

SECONDS = 0.05


def timed(x):
    seconds = 1e-3 * (1 + abs(x - 7))
    check = {"ok": True, "max_err": 0.0, "shapes": []}
    return {"status": "ok", "time_s": seconds, "samples": [seconds] * 3, "check": check}


def fake(message, limits, remaining):
    """Sleeps; says where it ran."""
    time.sleep(SECONDS)
    return timed(message["config"]["x"]) | {"detail": {"pid": os.getpid()}}


def first_to(name, folder):
    """Whether nobody has come here before."""
    try:
        with Path(folder, name).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def dangerous(message, limits, remaining):
    """The first to be asked for x=5 is killed, the first to be asked for x=9 hangs with its whole process."""
    x = message["config"]["x"]
    if x == 5 and first_to("killed", message["folder"]):
        os.kill(os.getpid(), signal.SIGKILL)
    if x == 9 and first_to("hung", message["folder"]):
        os.kill(os.getpid(), signal.SIGSTOP)
    return fake(message, limits, remaining)
