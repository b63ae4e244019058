"""Links to files of the repository are written as GitHub wants them: relative to the file that they stand in.

The site has a page for some of these files. It offers the others as a download, and shows a link to a folder as plain
text. What is not there stays unresolved, so that the build fails.
"""

import os
from pathlib import Path
from typing import Any

from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PAGES = {
    ROOT / "CHANGELOG.md": "changelog",
    ROOT / "CONTRIBUTING.md": "contributing",
    ROOT / "README.md": "index",
    ROOT / "{{cookiecutter.project_slug}}" / "src" / "mailroom" / "CONTRACT.md": "contract",
}
BEFORE_DOWNLOADS_ARE_COLLECTED = 400


def _resolve(app: Sphinx, doctree: Any) -> None:
    for link in list(doctree.findall(pending_xref)):
        if link.get("reftype") == "myst":
            _resolve_one(app, link)


def _resolve_one(app: Sphinx, link: pending_xref) -> None:
    if link["reftarget"] in app.env.found_docs or link.source is None:  # a heading of the page itself has no source
        return
    path, _, heading = link["reftarget"].partition("#")
    document = f"{path}.md" if link.get("refdomain") == "doc" else path  # MyST has taken the suffix away
    file = (Path(link.source).parent / document).resolve()
    page = PAGES.get(file) or app.env.path2doc(str(file))
    if page in app.env.found_docs:
        link["refdomain"], link["reftarget"] = "doc", page
        link["reftargetid"] = heading or link.get("reftargetid")
    elif file.is_file():
        folder = app.env.doc2path(link["refdoc"]).parent
        target = os.path.relpath(file, folder)
        link.replace_self(download_reference("", "", *link.children, reftarget=target, refdoc=link["refdoc"]))
    elif path and file.is_dir():
        link.replace_self(link.children)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _resolve, priority=BEFORE_DOWNLOADS_ARE_COLLECTED)
    return {"parallel_read_safe": True}
