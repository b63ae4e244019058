"""The reference of the settings is what the classes say, and a setting that says nothing about itself is refused."""

import runpy
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
from checkout import PROJECT, ROOT
from pydantic import BaseModel, Field, SecretStr

SCRIPT = ROOT / "docs" / "settings_reference.py"
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


class Described(BaseModel, use_attribute_docstrings=True):
    """What it is for."""

    count: int = Field(3, ge=1, le=9)
    """How many."""
    share: float = Field(0.5, gt=0)
    """How much of | it."""
    names: tuple[str, ...] = ("a", "b")
    """Which."""
    level: Literal["low", "high"] = "low"
    """How loud."""
    is_on: bool | None = None
    """Whether."""
    password: SecretStr
    """Not shown."""


class Project(BaseModel, use_attribute_docstrings=True):
    part: Described
    outside: int = Field(1, le=2)
    """Alone."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def reference(script: dict[str, Any]) -> Callable[[type[BaseModel]], str]:
    return script["reference"]  # type: ignore[no-any-return]


def test_the_page_is_what_the_classes_say_now(script: dict[str, Any]) -> None:
    assert script["written"](PAGE) == PAGE, "run: make docs-settings"


def test_every_setting_is_there_with_its_variable_and_its_description(script: dict[str, Any]) -> None:
    known = script["leaves"](script["Settings"])
    assert len(known) > 20
    for key, info in known.items():
        if script["named_section_of"](info):
            assert f"## [{key[0]}.<name>]" in PAGE
            assert " ".join(info.description.split()) in PAGE
            continue
        (line,) = [
            line for line in PAGE.splitlines() if line.startswith(f"| `{key[-1]}` | `{'__'.join(key).upper()}` |")
        ]
        assert line.endswith(f"| {' '.join(info.description.split())} |")


def test_the_settings_of_the_example_file_are_there() -> None:
    example = (PROJECT / ".env.example").read_text(encoding="utf-8")
    for line in example.splitlines():
        name, equals, _ = line.removeprefix("# ").partition("=")
        assert not equals or name.startswith("{%") or name.endswith(("_USER", "_PASSWORD")) or f"| `{name}` |" in PAGE


def test_a_setting_is_shown_with_its_kind_its_bounds_and_its_default(
    reference: Callable[[type[BaseModel]], str],
) -> None:
    lines = reference(Project).splitlines()
    for line in (
        "## [part]",
        "What it is for.",
        "| `count` | `PART__COUNT` | whole number, at least 1, at most 9 | `3` | How many. |",
        "| `share` | `PART__SHARE` | number, above 0 | `0.5` | How much of \\| it. |",
        '| `names` | `PART__NAMES` | list; each: text | `["a", "b"]` | Which. |',
        '| `level` | `PART__LEVEL` | `low` or `high` | `"low"` | How loud. |',
        "| `is_on` | `PART__IS_ON` | true or false, or unset | unset | Whether. |",
        "| `password` | `PART__PASSWORD` | secret text | none: must be given | Not shown. |",
        "| `outside` | `OUTSIDE` | whole number, at most 2 | `1` | Alone. |",
    ):
        assert line in lines


def test_a_setting_without_a_description_is_refused(
    script: dict[str, Any], reference: Callable[[type[BaseModel]], str]
) -> None:
    class Silent(Described):
        """Says what it is, and not what is in it."""

        quiet: int = 1

    class Service(BaseModel):
        part: Silent

    with pytest.raises(script["UndescribedError"], match=r"part\.quiet has no description"):
        reference(Service)
