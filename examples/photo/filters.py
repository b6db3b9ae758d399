"""A tuned convolution on a real photograph: a filter bank in colour, and the first layer shape of ResNet-50.

    python examples/photo/filters.py --budget 20s --out photo.png

Both are ``tir.ops.conv2d`` workloads, tuned here within the budget, compared with SciPy or NumPy, and shown as a
picture. The photograph comes with scikit-learn; reading it takes Pillow (``pip install "tensorir[notebook]"``).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tensorir as tir

Array = NDArray[np.float32]

LINE = np.arange(-2.0, 3.0)
BELL = np.exp(-(LINE**2) / 2)

BANK: dict[str, Any] = {
    "blur": np.outer(BELL, BELL) / BELL.sum() ** 2,
    "edges": np.eye(5)[2][:, None] * np.eye(5)[2] * 25 - np.ones((5, 5)),
    "vertical": np.outer(BELL, LINE) / 4,
    "sharper": 2 * np.eye(5)[2][:, None] * np.eye(5)[2] - np.outer(BELL, BELL) / BELL.sum() ** 2,
    "emboss": np.outer(LINE, np.ones(5)) / 6 + np.outer(np.ones(5), LINE) / 6 + np.eye(5)[2][:, None] * np.eye(5)[2],
}
"""5 x 5 filters by name."""


def photograph() -> Array:
    """scikit-learn's china.jpg as (channel, row, column), values from 0 to 1."""
    from sklearn.datasets import load_sample_image

    return np.ascontiguousarray(load_sample_image("china.jpg").transpose(2, 0, 1), dtype="float32") / np.float32(255)


def bank_workload(image: Array) -> tuple[tir.Workload, list[Array]]:
    """Every filter on every colour: a convolution in three groups. Returns the workload and its arguments."""
    channels, height, width = image.shape
    weights = np.stack([f for _ in range(channels) for f in BANK.values()])[:, None].astype("float32")
    work = tir.ops.conv2d(n=1, c=channels, h=height, w=width, k=len(weights), r=5, s=5, pad=2, groups=channels)
    return work, [image[None], weights]


def bank_reference(image: Array) -> Array:
    """The same with SciPy, in double precision."""
    from scipy.signal import correlate2d

    planes = [correlate2d(plane.astype("float64"), f, "same") for plane in image for f in BANK.values()]
    return np.stack(planes)[None].astype("float32")


def gabor_filters(size: int = 7) -> Array:
    """64 filters (64, 3, 7, 7) such as first layers learn: waves of 8 directions, 4 lengths and 2 phases."""
    axis = np.arange(size) - size // 2
    y, x = np.meshgrid(axis, axis, indexing="ij")
    filters = []
    for angle in np.arange(8) * np.pi / 8:
        along = x * np.cos(angle) + y * np.sin(angle)
        for length in (3, 4, 6, 9):
            for phase in (0, np.pi / 2):
                wave = np.cos(2 * np.pi * along / length + phase) * np.exp(-(x**2 + y**2) / 8)
                filters.append((wave - wave.mean()) / np.abs(wave).sum())
    return np.repeat(np.stack(filters)[:, None], 3, axis=1).astype("float32") / 3


def layer_workload(image: Array) -> tuple[tir.Workload, list[Array]]:
    """The first layer shape of ResNet-50 (1x3x224x224, 64x3x7x7, stride 2, padding 3) on a crop of the photograph."""
    crop = np.ascontiguousarray(image[:, 60:284, 100:324])
    return tir.ops.conv2d(n=1, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3), [crop[None], gabor_filters()]


def layer_reference(x: Array, w: Array) -> Array:
    """The same with NumPy, in double precision."""
    padded = np.pad(x[0].astype("float64"), ((0, 0), (3, 3), (3, 3)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(1, 2))[:, ::2, ::2]
    return np.einsum("cpqrs,kcrs->kpq", windows, w.astype("float64"), optimize=True)[None].astype("float32")


def bank_pictures(image: Array, y: Array) -> dict[str, Array]:
    """The photograph and each filter's result as (row, column, colour) from 0 to 1."""
    made = y[0].reshape(3, len(BANK), *image.shape[1:])
    pictures = {name: made[:, n] for n, name in enumerate(BANK)}
    pictures["vertical"] = np.abs(pictures["vertical"])
    return {name: np.clip(p.transpose(1, 2, 0), 0, 1) for name, p in {"photograph": image, **pictures}.items()}


def layer_picture(y: Array) -> Array:
    """The 64 feature maps in 4 rows and 16 columns, from 0 to 1."""
    maps = np.abs(y[0, :, ::2, ::2])
    maps = maps / maps.max(axis=(1, 2), keepdims=True)
    rows, columns = maps.shape[1:]
    sheet = maps.reshape(4, 16, rows, columns).transpose(0, 2, 1, 3)
    return np.asarray(sheet.reshape(4 * rows, 16 * columns), dtype="float32")


def save(path: str, image: Array, bank: Array, layer: Array) -> None:
    """Two rows of pictures, and the feature maps below, as one file."""
    from PIL import Image

    tiles = list(bank_pictures(image, bank).values())
    height, width, _ = tiles[0].shape
    top = np.concatenate([np.concatenate(tiles[:3], axis=1), np.concatenate(tiles[3:6], axis=1)])
    maps = Image.fromarray((layer_picture(layer) * 255).astype("uint8")).resize((3 * width, 3 * width // 4))
    sheet = Image.new("RGB", (3 * width, 2 * height + 3 * width // 4))
    sheet.paste(Image.fromarray((top * 255).astype("uint8")), (0, 0))
    sheet.paste(maps.convert("RGB"), (0, 2 * height))
    sheet.save(path)


def tuned(work: tir.Workload, budget: str, log: str, trials: int | None) -> tir.Executable:
    """The fastest kernel found within the budget."""
    result = work.tune(budget=budget, trials=trials, log=log)
    if result.best is None or result.default is None:
        raise SystemExit(f"{work.name}: {result.status}, {result.reasons}")
    print(f"{work.name}: {sum(result.counts.values())} trials, best {result.best.time_s * 1e3:.3f} ms, ", end="")
    print(f"default {result.default.time_s * 1e3:.3f} ms")
    return work.load(log=log)


def main(arguments: list[str] | None = None) -> None:
    """Tune both convolutions, compare, and save the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="20s", help="for each of the two convolutions")
    parser.add_argument("--trials", type=int, help="configurations at most for each")
    parser.add_argument("--log", default="tuning_logs")
    parser.add_argument("--out", default="photo.png")
    given = parser.parse_args(arguments)

    image = photograph()
    bank, bank_arguments = bank_workload(image)
    y = tuned(bank, given.budget, given.log, given.trials)(*bank_arguments)
    print("  largest difference from SciPy:", np.abs(y - bank_reference(image)).max())

    layer, layer_arguments = layer_workload(image)
    z = tuned(layer, given.budget, given.log, given.trials)(*layer_arguments)
    print("  largest difference from NumPy:", np.abs(z - layer_reference(*layer_arguments)).max())

    save(given.out, image, y, z)
    print(given.out)


if __name__ == "__main__":
    main()
