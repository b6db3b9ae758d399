"""Kernels in JAX of several versions, each in an environment of its own, without tensorir.

    python benchmarks/frameworks/jax_versions.py [--versions 0.5.0,newest] [--environments DIR] [-o FILE]

In each: the self-tests of a product with kernels for its gradients, of several outputs, of numbers and of a gather;
then jit, vmap and grad of the product, which must be what JAX computes, and 10,000 calls from 4 threads, which must
end. (``destinations.py --to jax --install 'jax=jax==0.5.0'`` has the self-tests of all kernels.) VERSION=DIR in --have
uses packages that are in DIR instead of installing them. Exit status 1 when anything is wrong.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import destinations

import tensorir as tir

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
from versus.environment import environment, now

CALLS = 10_000
CHECK = """
import sys, threading, time
sys.modules["tensorir"] = None
sys.path.insert(0, sys.argv[1])
import numpy as np, jax, jax.numpy as jnp, jaxlib, product
same = lambda x, y: np.array_equal(np.asarray(x), np.asarray(y))
r = np.random.default_rng(0)
a, b = r.integers(-4, 5, (33, 17)).astype("f4"), r.integers(-4, 5, (17, 20)).astype("f4")
f, many = jax.jit(product.call), np.stack([a, 2 * a, -a])
assert same(f(a, b), a @ b)
assert same(jax.jit(jax.vmap(product.call, in_axes=(0, None)))(many, b), many @ b)
for n in (0, 1):
    made = [jax.jit(jax.grad(lambda a, b: (f(a, b) ** 2).sum(), argnums=n))(a, b) for f in (product.call, jnp.matmul)]
    assert same(*made)
wrong, calls = [], int(sys.argv[2]) // 4
def run(n):
    x, want = jnp.asarray(a * n), n * (a @ b)
    for k in range(calls):
        y = f(x, b)
        if k % 50 == 0 and not same(y, want):
            wrong.append(n)
    y.block_until_ready()
threads, began = [threading.Thread(target=run, args=(n,)) for n in range(1, 5)], time.perf_counter()
[t.start() for t in threads]
[t.join(200) for t in threads]
assert not wrong and not any(t.is_alive() for t in threads)
assert product.__file__.startswith(sys.argv[1])
print(f"jax {jax.__version__}, jaxlib {jaxlib.__version__}: {4 * calls} calls from 4 threads in "
      f"{time.perf_counter() - began:.2f} s")
"""


def write(folder):
    """The folders."""
    a, b, d = (tir.placeholder(s, name=n) for n, s in (("a", (33, 17)), ("b", (17, 20)), ("d_y", (33, 20))))
    made = [
        tir.nn.matmul(a, b, name="y"),
        tir.nn.matmul(d, b, tb=True, name="da"),
        tir.nn.matmul(a, d, ta=True, name="db"),
    ]
    y, da, db = (tir.Schedule(t, "c") for t in made)
    whole = y.export(folder / "product", "jax", backward={"a": da, "b": db})
    others = (destinations.several, destinations.scaled, destinations.gathered)
    return [whole, *(make().export(folder / make.__name__, "jax") for make in others)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default="0.5.0,newest")
    parser.add_argument("--environments", type=Path, help="where environments are kept between runs")
    parser.add_argument("--have", action="append", default=[], metavar="VERSION=DIR")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    have, rows = dict(pair.split("=", 1) for pair in args.have), []
    about = environment()
    with tempfile.TemporaryDirectory() as scratch:
        folders = write(Path(scratch) / "made")
        for version in args.versions.split(","):
            words = ["jax"] if version == "newest" else [f"jax=={version}", f"jaxlib=={version}"]
            words = [] if version in have else words
            _, command = destinations.environment(version, args.environments or Path(scratch), have, words)
            for folder in folders:
                code, said = destinations.run(command, folder / "selftest.py", "jax")
                rows.append({"version": version, "ok": code == 0, "said": f"{folder.name}: {said[-600:]}"})
                print("ok   " if code == 0 else "WRONG", version, rows[-1]["said"], flush=True)
            code, said = destinations.run(command, "-c", CHECK, Path(scratch) / "made", args.calls)
            rows.append({"version": version, "ok": code == 0, "said": said[-600:]})
            print("ok   " if code == 0 else "WRONG", version, said, flush=True)
    if args.output:
        found = {"environment": about | {"ended": now()}, "calls": args.calls, "rows": rows}
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()
