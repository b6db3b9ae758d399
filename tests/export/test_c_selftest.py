"""Numbers in a few characters: what a C program takes out of a text."""

import shutil
import subprocess

import numpy as np
import pytest

from tensorir.export.c_selftest import CHARACTERS, DECODE, TOLERANCE_STEPS, NumberRows

PROGRAM = "#include <math.h>\n#include <stdio.h>\n#include <stddef.h>\n"


def decoded(made, row, count, folder):
    text = f"{PROGRAM}{DECODE}\nstatic const char *const t =\n{made.literal(row)};\nint main(void) {{"
    text += f"for (size_t n = 0; n < {count}; ++n) "
    text += f'printf("%.17g\\n", decoded(t, n, {made.digits}, {made.units[row]!r})); return 0; }}\n'
    (folder / "t.c").write_text(text)
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "t.c", "-o", "t", "-lm"], cwd=folder, check=True)
    return np.array(
        subprocess.run(["./t"], cwd=folder, check=True, capture_output=True, text=True).stdout.split(), float
    )


def test_no_digit_needs_an_escape():
    assert len(CHARACTERS) == 90
    assert not set(CHARACTERS) & set('"\\?')


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("tolerance", [1e-2, 5e-5, 1e-7])
def test_numbers_are_as_fine_as_their_tolerance_needs(tmp_path, tolerance):
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(300) * 1e3, rng.standard_normal(300), np.zeros(3)]
    rows[0][:4] = [np.nan, np.inf, -np.inf, 0.0]
    most = [float(np.abs(r[np.isfinite(r)]).max()) for r in rows]
    allowed = [tolerance * m for m in most]
    made = NumberRows.of(rows, allowed)
    for n, row in enumerate(rows):
        got = decoded(made, n, len(row), tmp_path)
        assert np.array_equal(np.isfinite(got), np.isfinite(row))
        assert np.array_equal(got[~np.isfinite(row)], row[~np.isfinite(row)], equal_nan=True)
        finite = np.isfinite(row)
        assert np.abs(got[finite] - row[finite]).max() <= allowed[n] / TOLERANCE_STEPS
        assert np.array_equal(got[row == 0], row[row == 0])
    assert made.digits <= {1e-2: 2, 5e-5: 4, 1e-7: 5}[tolerance]
