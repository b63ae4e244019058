"""The pages say what is there: every link leads somewhere, and every test that a page names exists."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
TRACKED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
PAGES = sorted(name for name in TRACKED.split("\0") if name.endswith(".md"))
TESTS = "\n".join(path.read_text() for path in ROOT.rglob("test_*.py") if ".venv" not in path.parts)

INLINE_LINK = re.compile(r"\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)
USED_REFERENCE = re.compile(r"\]\[([^\]]+)\]")
NAMED_TEST = re.compile(r"\btest_\w+\b(?!\.py|/)")
CODE = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: str) -> str:
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = CODE.sub("", prose(page))
    targets = [*INLINE_LINK.findall(text), *REFERENCE.findall(text)]
    for target in targets:
        if "://" not in target and not target.startswith(("#", "mailto:")):
            assert ((ROOT / page).parent / unquote(target.partition("#")[0])).exists(), target
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    assert set(USED_REFERENCE.findall(text)) <= defined


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    missing = [name for name in NAMED_TEST.findall(prose(page)) if f"def {name}(" not in TESTS]
    assert missing == []


def test_the_architecture_page_has_a_line_for_each_module() -> None:
    """All but the names that a package hands on."""
    mailroom = ROOT / "{{cookiecutter.project_slug}}" / "src" / "mailroom"
    modules = {path.relative_to(mailroom).as_posix() for path in mailroom.rglob("*.py") if path.stat().st_size}
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    floors = page.partition("## The floors")[2].partition("\n## ")[0]
    listed = re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \|", floors, re.MULTILINE)
    assert sorted(listed) == sorted(modules - {"__init__.py"})
