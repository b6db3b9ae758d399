"""What a call of an exported C function costs over its kernel, both interleaved in one run.

python benchmarks/frameworks/c_call.py [--calls 10000] [--json FILE]

The function of 64 sums is exported with ``to="c"``. A program that includes its text times, call by call and in turn:
nothing (what reading the clock costs), the kernel alone, the function with NULL for how to run, with a ``tir_call`` of
one thread, and with a ``parallel_for`` of the caller's. The least and the median nanoseconds are printed, with what is
above the kernel alone, and written as JSON.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import tensorir as tir
from tensorir.runtime.c_device import compilers

HERE = Path(__file__).resolve().parent
CASES = ("the clock", "the kernel", "sums(NULL, …)", "one thread", "own parallel_for")

PROGRAM = """#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include "sums.c"

enum { CASES = 5 };
static float a[64] __attribute__((aligned(64))), b[64] __attribute__((aligned(64))), c[64] __attribute__((aligned(64)));

static int each(void *pool, size_t blocks, void (*body)(void *, size_t), void *state) {
  (void)pool;
  for (size_t n = 0; n < blocks; ++n) body(state, n);
  return 0;
}

static int by_value(const void *x, const void *y) {
  const uint64_t p = *(const uint64_t *)x, q = *(const uint64_t *)y;
  return (p > q) - (p < q);
}

int main(int argc, char **argv) {
  const size_t calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
  void *buffers[] = {a, b, c};
  const int64_t block[3] = {0, 0, 0};
  const tir_call one = {.size = sizeof one, .threads = 1}, own = {.size = sizeof own, .parallel_for = each};
  void (*volatile kernel)(void *const *, const int64_t *) = tir_kernels[tir_text()][0];
  uint64_t *took = malloc(CASES * calls * sizeof *took);
  if (!took) return 1;
  for (int n = 0; n < 64; ++n) a[n] = (float)n, b[n] = 1;
  for (size_t n = 0; n < calls; ++n)
    for (int k = 0; k < CASES; ++k) {
      const int which = (int)((n + (size_t)k) % CASES);
      int failed = 0;
      const uint64_t began = tir_now();
      switch (which) {
        case 1: kernel(buffers, block); break;
        case 2: failed = sums(NULL, buffers); break;
        case 3: failed = sums(&one, buffers); break;
        case 4: failed = sums(&own, buffers); break;
      }
      took[(size_t)which * calls + n] = tir_now() - began;
      if (failed || (which && c[63] != 64)) return 2;
      c[63] = 0;
    }
  for (int k = 0; k < CASES; ++k) {
    qsort(took + (size_t)k * calls, calls, sizeof *took, by_value);
    printf("%llu %llu\\n", (unsigned long long)took[(size_t)k * calls],
           (unsigned long long)took[(size_t)k * calls + calls / 2]);
  }
  return 0;
}
"""


def measured(compiler: str, folder: str, calls: int) -> dict[str, dict[str, int]]:
    """Nanoseconds of each case, least and median, and what is above the kernel alone."""
    (Path(folder) / "timed.c").write_text(PROGRAM, encoding="utf-8")
    command = [compiler, "-std=c11", "-O3", "timed.c", "-o", "timed", "-lm", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    said = subprocess.run([f"{folder}/timed", str(calls)], check=True, capture_output=True, text=True).stdout
    times = dict(zip(CASES, ([int(word) for word in line.split()] for line in said.splitlines()), strict=True))
    least, median = times["the kernel"]
    return {
        case: {"least_ns": a, "median_ns": b, "over_kernel_least_ns": a - least, "over_kernel_median_ns": b - median}
        for case, (a, b) in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=HERE.parent / "results" / "c_call.json")
    options = parser.parse_args()
    a, b = tir.placeholder((64,), name="a"), tir.placeholder((64,), name="b")
    s = tir.Schedule(tir.compute((64,), lambda i: a[i] + b[i], name="c"))
    found = {}
    for path, version in compilers():
        with tempfile.TemporaryDirectory(prefix="tensorir-bench-") as folder:
            s.export(f"{folder}/sums", to="c", name="sums")
            found[version] = measured(path, f"{folder}/sums", options.calls)
        print(version)
        for case, row in found[version].items():
            print(
                f"  {case:20s}", "  ".join(f"{name.removesuffix('_ns')} {value:6d} ns" for name, value in row.items())
            )
    about = {
        "calls": options.calls,
        "processor": platform.processor() or platform.machine(),
        "load_average": os.getloadavg(),
        "results": found,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
