"""A server of one exported kernel, for ``server.py``: python server_worker.py FOLDER PORT

POST /predict {"a": N * N numbers} is answered with those of a @ b; b is in b.npy next to the folder. Needs litserve,
onnxruntime and NumPy; tensorir cannot be imported, and every answer says which of its modules there are.
"""

import sys
from importlib import import_module
from pathlib import Path

import litserve
import numpy as np
from fastapi import HTTPException

sys.modules["tensorir"] = None  # in the worker too: it imports this file
FOLDER = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(FOLDER.parent))


class Kernel(litserve.LitAPI):
    """The handler."""

    def setup(self, device):
        self.b = np.load(FOLDER.parent / "b.npy")
        self.program = import_module(f"{FOLDER.name}.door_onnxruntime").Program(threads=1)

    def decode_request(self, request):
        a = np.array(request.get("a", ()), np.float32)
        if a.size != self.b.size:
            raise HTTPException(400, f"a is {self.b.size} numbers, not {a.size}")
        return a.reshape(self.b.shape)

    def predict(self, x):
        return self.program(x, self.b)

    def encode_response(self, output):
        here = [m for m, found in sys.modules.items() if m.split(".")[0] == "tensorir" and found is not None]
        return {"c": output.ravel().tolist(), "tensorir": here}


if __name__ == "__main__":
    server = litserve.LitServer(Kernel(), accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="warning")
