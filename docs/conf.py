"""Configuration of the Sphinx documentation."""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # gallery_settings

project = "lingp"
author = "The lingp authors"
copyright = "2026, The lingp authors"
release = version = installed_version("lingp")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
default_role = "code"  # single backticks in docstrings

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

numpydoc_show_class_members = False
autosummary_generate = False  # numpydoc loads autosummary, which is not used
autodoc_member_order = "bysource"
autodoc_typehints = "none"

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "gallery_settings.ReadingOrder",
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib", "gallery_settings.reset"),
    "reset_modules_order": "both",
    "capture_repr": (),
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "inspect_global_variables": False,
}

html_theme = "furo"
html_title = "lingp"
html_static_path = ["_static"]
html_css_files = ["lingp.css"]


def escape_formulas(app, what, name, obj, options, lines):
    """Let docstrings say J*, |x| and matmul_ without Sphinx taking them for markup."""
    code_or_special = re.compile(r"(`+[^`]*`+)|([*|]|(?<=\w)_(?=\W|$))")
    for number, line in enumerate(lines):
        lines[number] = code_or_special.sub(lambda m: m[1] or "\\" + m[2], line)


def setup(app):
    # Before numpydoc (priority 500), which writes markup of its own.
    app.connect("autodoc-process-docstring", escape_formulas, priority=100)
