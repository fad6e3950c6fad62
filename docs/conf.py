"""Sphinx configuration: `make docs` builds the site from the pages of this folder."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))  # settings_tables
sys.path.insert(0, str(Path(__file__).parent.parent))

import engram

project, author, version = "Engram", "Engram contributors", engram.__version__
copyright = "Engram contributors, MIT licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "settings_tables"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages may begin a table with an empty header
default_role = "code"  # `name` in docstrings

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"

html_theme = "furo"
html_title = "Engram"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "sidebar_hide_name": False}
pygments_style, pygments_dark_style = "friendly", "monokai"

# Pages link to source files of the repository, which are no part of the site: there the path is text.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)(?:#[^)]*)?\)")


def _name_files(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = OUTSIDE.sub(_as_text, source[0])


def _as_text(link: re.Match[str]) -> str:
    label, path = link.groups()
    return f"`{path}`" if Path(path).name in label or label.strip("`") in path else f"{label} (`{path}`)"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _name_files)
