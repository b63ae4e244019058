"""How Sphinx builds the site: `make docs`. Every page is plain Markdown that can be read on GitHub as well."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "cookiecutter-mailroom"
author = "The authors of cookiecutter-mailroom"
project_copyright = author

extensions = ["myst_parser", "sphinxcontrib.mermaid", "contents", "repository_links"]

html_theme = "furo"
html_title = project
html_show_sourcelink = False
html_copy_source = False

myst_fence_as_directive = ["mermaid"]  # the fence that GitHub draws
myst_heading_anchors = 4  # page.md#heading, as on GitHub; a wrong one fails the build
