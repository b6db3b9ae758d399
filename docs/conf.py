"""Sphinx configuration: MyST Markdown, notebooks executed at each build, pages generated from the package."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import figures
import generate

project = "tensorir"
author = "the tensorir developers"
copyright = "the tensorir developers"
extensions = ["myst_nb"]
html_theme = "furo"
html_title = "tensorir"
html_static_path = ["static"]
html_css_files = ["pages.css"]
exclude_patterns = ["_build", "README.md"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # every figure in these pages was made by the build
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
os.environ.pop("MPLBACKEND", None)  # a kernel shows figures in its page unless told otherwise
# pages show what is in examples/ by running it
_path = [str(HERE.parent / "examples"), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in _path if p)


def setup(app):
    generate.write(HERE / "generated")
    figures.write(HERE / "generated" / "figures")
    return {"parallel_read_safe": True}
