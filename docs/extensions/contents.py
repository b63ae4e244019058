"""The contents of the site: the pages that index.md and decisions/README.md list, in that order, under their headings.

So the list that GitHub shows is the one that the site has, and a page that no list names fails the build.
"""

import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

LISTS = ("index", "decisions/README")
HEADING = re.compile(r"^#+ (.+)$")
ENTRY = re.compile(r"^(?:- |\|)[^\]]*\]\(([\w./-]+)\.md\)")


def toctrees(page: str) -> Iterator[str]:
    """A hidden table of contents for each heading of the page that has pages listed below it."""
    listed: dict[str, list[str]] = {}
    heading = ""
    for line in page.splitlines():
        if found := HEADING.match(line):
            heading = found[1]
        elif found := ENTRY.match(line):
            listed.setdefault(heading, []).append(found[1])
    for caption, names in listed.items():
        yield "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"])


def _add(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname in LISTS:
        source[0] = "\n\n".join([source[0], *toctrees(source[0])]) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _add)
    return {"parallel_read_safe": True}
