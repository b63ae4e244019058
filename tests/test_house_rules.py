"""What keeps one tree fit for both engines and every system, checked on the files themselves (FAULTS F18, F19)."""

import re
from pathlib import Path

import pytest
from checkout import PROJECT, ROOT, TOKENS, git, source_files

FILES = source_files()
PLAIN = ("src/mailroom/", "tests/mailroom/", "migrations/")
WINDOWS_FORBIDS = re.compile(r'[<>:"\\|?*\x00-\x1f]|[ .]$')
# The only two answers that are safe in Python as they are; free text may hold quotes and backslashes.
SAFE_IN_PYTHON = {"cookiecutter.package_name", "cookiecutter.project_slug"}


def inside(path: Path) -> str:
    """The path in the project, or "" for a file of the template itself."""
    return "/".join(path.parts[1:]) if path.parts[0] == PROJECT.name else ""


@pytest.mark.parametrize("path", [one for one in FILES if inside(one).startswith(PLAIN)], ids=str)
def test_the_framework_holds_no_jinja(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if TOKENS.search(line)] == []


@pytest.mark.parametrize("path", [one for one in FILES if inside(one).endswith(".py")], ids=str)
def test_python_holds_no_answer_but_names(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert set(re.findall(r"\{\{\s*(.*?)\s*\}\}", text)) <= SAFE_IN_PYTHON


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_is_plain_and_portable(path: Path) -> None:
    full = ROOT / path
    assert not full.is_symlink()
    assert full.stat().st_mode & 0o777 in (0o644, 0o755)
    assert b"\r" not in full.read_bytes()
    assert not any(WINDOWS_FORBIDS.search(part) for part in path.parts)


def test_no_two_names_differ_only_in_case() -> None:
    assert len({str(path).lower() for path in FILES}) == len(FILES)


@pytest.mark.parametrize("folder", [ROOT, PROJECT], ids=["template", "project"])
def test_git_is_told_to_keep_lf(folder: Path) -> None:
    assert "* text=auto eol=lf" in (folder / ".gitattributes").read_text(encoding="utf-8").splitlines()


def test_editors_are_told_the_same_in_the_template_and_in_a_project() -> None:
    assert (ROOT / ".editorconfig").read_bytes() == (PROJECT / ".editorconfig").read_bytes()


def test_no_folder_is_named_by_a_condition() -> None:
    assert [path for path in FILES if "{%" in str(path)] == []


def test_no_ignore_rule_hides_a_file_of_the_template() -> None:
    """The project's .gitignore acts on the template's repository too."""
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard", cwd=ROOT) == ""


@pytest.mark.parametrize("path", [one for one in FILES if one.parts[0] not in ("docs",)], ids=str)
def test_no_file_names_a_place_of_one_machine(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w./}])/(?:home|Users|root|work)/[\w.-]+", text) == []
