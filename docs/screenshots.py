"""Make the pictures of docs/notebooks.md, of executed cells, and of docs/reading-a-run.md, by a headless browser.

python docs/screenshots.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "show"))

from browser import picture
from notebooks import executed, page

SCHEDULE = """\
import numpy as np
import tensorir as tir
A = tir.placeholder((256, 384), name="A")
B = tir.placeholder((384, 512), name="B")
k = tir.reduce_axis(384, name="k")
C = tir.compute((256, 512), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
s = tir.Schedule(C)
io, ii = s.split("C.i", [None, 8])
jo, ji = s.split("C.j", [None, 16])
ko, ki = s.split("C.k", [None, 48])
s[C].reorder(io, jo, ko, ki, ii, ji)
s.stage_in(B, at=ko, scope="register")
s.parallel(io)
s.vectorize(ji)
s.unroll(ii);
"""
TIME = "s.build().time(np.ones(A.shape, np.float32), np.ones(B.shape, np.float32))"
TUNE = "tir.ops.conv2d(n=1, c=64, h=28, w=28, k=64, r=3, s=3, pad=1).tune(trials=60, budget='40s', log='logs')"
CONV = ["conv2d", "1x64x28x28", "64x64x3x3", "--pad", "1", "--budget", "90s", "--log", "logs", "--progress", "none"]
COLOURS = 200


def report(folder: Path) -> str:
    """The page of a tuning run."""
    for words in (["tune", *CONV], ["report", "logs", "-o", "report.html"]):
        subprocess.run([sys.executable, "-m", "tensorir", *words], cwd=folder, check=True)
    return (folder / "report.html").read_text(encoding="utf-8")


def shoot(html: str, name: str, dark: bool = False, size: tuple[int, int] = (940, 1400)) -> None:
    """Write a picture of a page, without its empty border, in few colours."""
    path = HERE / "pictures" / f"{name}.png"
    picture(html, path, dark, size)
    image = Image.open(path).convert("RGB")
    empty = Image.new("RGB", image.size, image.getpixel((2, image.height - 2)))
    box = ImageChops.difference(image, empty).getbbox()
    low = min(image.height, box[3] + 12)
    image.crop((0, 0, image.width, low)).quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    (HERE / "pictures").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shoot(report(Path(folder)), "report", size=(1140, 900))
        notebook = executed([SCHEDULE, "s", TIME], Path(folder)).nb
        moving = executed(["import tensorir as tir", TUNE], Path(folder)).renewed
    del notebook.cells[0]
    for theme in ("light", "dark"):
        shoot(page(notebook, theme), theme, theme == "dark")
    shown = [html for _, html in moving if "Tuning …" in html and "<svg" in html]
    shoot(f'<body style="margin: 12px">{shown[len(shown) * 2 // 3]}', "live")


if __name__ == "__main__":
    main()
