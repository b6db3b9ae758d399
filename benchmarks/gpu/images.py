"""Whether exported CUDA images serve every later device: each PTX assembled offline wherever the rule gives it to one.

    python benchmarks/gpu/images.py [--only WORDS] [-o benchmarks/results/cuda_images.json]

For each class of kernels of ``offline.py`` and each of its architectures (of two classes, of those between and after
them too): the images that an export for that architecture carries, beside those for sm_80 where that can be; which
image each device takes by the loaders' rule; and
``ptxas`` (of the extra ``dev``, at least as new as NVRTC) on every PTX for every architecture that NVRTC knows and the
rule gives it to. Nothing is run. Exit status 1 when a device has no image or a PTX does not assemble.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cupy.cuda import nvrtc
from offline import CLASSES, HOPPER

from tensorir.api.shipping import part_of_work
from tensorir.errors import TensorIRError
from tensorir.export.images import compiled
from tensorir.export.shipped.cuda_images import order, runs
from tensorir.target import Target

BETWEEN = ("sm_86", "sm_89", "sm_100", "sm_103", "sm_120")
"""Further architectures of a class in threads and of one of mma.sync."""
FURTHER = ("fp32 SIMT, A and B as they lie", "fp16 mma.sync, B transposed")


def assembler():
    """The ptxas of a wheel, or the one on the PATH, and its release."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations or () if spec else ()
    found = next((str(p) for place in places if (p := Path(place, "cu13/bin/ptxas")).exists()), shutil.which("ptxas"))
    if found is None:
        sys.exit("there is no ptxas: pip install nvidia-cuda-nvcc")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", said).groups()
    if tuple(map(int, release)) < nvrtc.getVersion():
        sys.exit(f"ptxas {'.'.join(release)} is older than NVRTC {nvrtc.getVersion()}")
    return found, ".".join(release)


def carried(work, template, config, arch):
    """The images of an export for ``arch`` and sm_80, or for ``arch`` alone where there is no other kernel."""
    target = Target.parse(f"cuda -arch={arch}")
    name = template or work.template_for(target)
    space = work.templates[name].space_for(target)
    part = part_of_work(work, name, {**space.default, **config}, target)
    try:
        return part, compiled(part, dict.fromkeys(["sm_80", arch] if arch != "sm_75" else [arch]))
    except TensorIRError:
        return part, compiled(part, [arch])


def row(kind, arch, ptxas):
    """What is known of one class on one architecture."""
    part, made = carried(kind.make(**kind.large), kind.template, dict(kind.config), arch)
    files = [i.entry(f"{n}.{i.kind}") for n, i in enumerate(made.images)]
    texts = {"tuned": part.arch, **({} if made.portable is None else {"portable": made.portable.arch})}
    takes, wrong, tried = {}, [], 0
    for level in nvrtc.getSupportedArchs():
        device = level // 10, level % 10
        try:
            chosen = order(files, texts, device)[0]
        except RuntimeError:
            takes[f"sm_{level}"] = None
            continue
        program, image = chosen
        takes[f"sm_{level}"] = f"{program} {image['kind']} {image['arch']}" if image else f"{program} text"
        if image is None:
            wrong.append(f"sm_{level} has no image")
        for i, about in zip(made.images, files, strict=True):
            if i.kind != "ptx" or not runs(about["arch"], device):
                continue
            with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
                file.write(i.data.rstrip(b"\0"))
                file.flush()
                command = [ptxas, f"-arch=sm_{level}", "-o", os.devnull, file.name]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            tried += 1
            if done.returncode:
                wrong.append(f"{about['program']} {about['arch']} for sm_{level}: {done.stderr[-300:]}")
    return {"class": kind.name, "arch": arch, "images": files, "takes": takes, "assembled": tried, "wrong": wrong,
            **({"missing": made.missing} if made.missing else {})}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="classes whose names have this in them")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    ptxas, release = assembler()
    sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
    from versus.environment import environment

    about = environment() | {"nvrtc": ".".join(map(str, nvrtc.getVersion())), "ptxas": release}
    rows, seen = [], set()
    for kind in (*CLASSES, *HOPPER):
        for arch in (*kind.arches, *(BETWEEN if kind.name in FURTHER else ())):
            same = repr((kind.make.__name__, kind.large, kind.template, dict(kind.config), arch))
            if args.only not in kind.name or same in seen:
                continue
            seen.add(same)
            rows.append(row(kind, arch, ptxas))
            print(
                f"{kind.name:48} {arch:7} {rows[-1]['assembled']:3} {'; '.join(rows[-1]['wrong']) or 'ok'}", flush=True
            )
            if args.output:
                document = {"schema": 1, "environment": about, "rows": rows}
                args.output.write_text(json.dumps(document, indent=1) + "\n")
    assembled = sum(r["assembled"] for r in rows)
    print(f"{len(rows)} exports, {assembled} assemblies, {sum(bool(r['wrong']) for r in rows)} wrong")
    return int(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
