"""The photograph example: against SciPy and NumPy with the default schedules, and once as a user runs it."""

import re

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow reads the photograph")
pytest.importorskip("sklearn", reason="scikit-learn brings the photograph")

from photo import filters


@pytest.fixture(scope="module")
def image():
    return filters.photograph()


def test_first_layer_agrees_with_numpy(image):
    work, arguments = filters.layer_workload(image)
    z = work.schedule().build()(*arguments)
    assert z.shape == (1, 64, 112, 112)
    np.testing.assert_allclose(z, filters.layer_reference(*arguments), atol=1e-5)


@pytest.mark.usefixtures("only_run")
def test_as_a_user_runs_it(image, tmp_path, monkeypatch, capsys):
    """On the part of the photograph that the second convolution takes: a third of its pixels."""
    from PIL import Image

    height, width = 288, 328
    monkeypatch.setattr(filters, "photograph", lambda: np.ascontiguousarray(image[:, :height, :width]))
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
