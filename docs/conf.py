"""Sphinx: the pages are Markdown, the reference comes from docstrings, figures from a run."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "examples")]

import figures  # noqa: E402

import fastdr  # noqa: E402

project = "fastdr"
author = "the fastdr developers"
copyright = f"2026, {author}"  # noqa: A001
version = release = fastdr.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fastdr {version}"
html_show_sourcelink = False
autodoc_typehints = "none"  # numpydoc says them in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # the template lists them, with all they say
templates_path = ["templates"]
exclude_patterns = ["generated/speed.md"]
suppress_warnings = ["ref.ref"]  # docstrings inherited from scikit-learn refer to its manual


def setup(app):
    """Draw the figures and render the measured tables before pages are read."""
    app.connect("builder-inited", lambda _: figures.make(HERE / "generated"))
