"""The photograph example: against SciPy and NumPy with the default schedules, and once as a user runs it."""

import re

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow reads the photograph")
pytest.importorskip("sklearn", reason="scikit-learn brings the photograph")

from photo import filters

import tensorir as tir


@pytest.fixture(scope="module")
def image():
    return filters.photograph()


def test_first_layer_agrees_with_numpy(image):
    work, arguments = filters.layer_workload(image)
    z = work.schedule().build()(*arguments)
    assert z.shape == (1, 64, 112, 112)
    np.testing.assert_allclose(z, filters.layer_reference(*arguments), atol=1e-5)


@pytest.mark.usefixtures("unoptimised")
def test_as_a_user_runs_it(image, tmp_path, monkeypatch, capsys):
    """On a small part of the photograph, which both convolutions take."""
    from PIL import Image

    height, width = 96, 112
    part = np.ascontiguousarray(image[:, 60 : 60 + height, 100 : 100 + width])
    layer = tir.ops.conv2d(n=1, c=3, h=height, w=width, k=64, r=7, s=7, stride=2, pad=3)
    monkeypatch.setattr(filters, "photograph", lambda: part)
    monkeypatch.setattr(filters, "layer_workload", lambda image: (layer, [image[None], filters.gabor_filters()]))
    monkeypatch.chdir(tmp_path)
    filters.main(["--trials", "1", "--budget", "200s"])
    out = capsys.readouterr().out
    differences = [float(x) for x in re.findall(r"largest difference\D*([\d.e-]+)", out)]
    assert len(differences) == 2
    assert max(differences) < 2e-5
    picture = np.asarray(Image.open("photo.png"))
    assert picture.shape == (2 * height + 3 * width // 4, 3 * width, 3)
    assert 20 < picture[:height, :width].mean() < 235
    assert len(np.unique(picture[2 * height :])) > 100
