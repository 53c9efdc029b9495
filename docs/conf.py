"""Configuration of the Sphinx documentation."""

from importlib.metadata import version as installed_version

project = "lingp"
author = "The lingp authors"
copyright = "2026, The lingp authors"
release = version = installed_version("lingp")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"

html_theme = "furo"
html_title = "lingp"
