"""CONTRIBUTING.md says what is there: each rule of the contract has a row, and what a page names exists."""

import re

import pytest
from checkout import PROJECT, ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CONTRACT = (PROJECT / "src/mailroom/CONTRACT.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w./{}-]+(?:\.(?:py|toml|json|yml|yaml|jinja|md|example)|/))`")
PLACES = (ROOT, PROJECT, PROJECT / "src/mailroom", PROJECT / "tests/mailroom", PROJECT / "migrations/versions",
          PROJECT / "src/mailroom/persistence", PROJECT / "src/mailroom/messaging")  # fmt: skip


def test_every_rule_of_the_contract_has_one_row() -> None:
    rules = re.findall(r"^- \*\*([PTORIA]\d)\*\*", CONTRACT, re.MULTILINE)
    rows = re.findall(r"^\| ([PTORIA]\d(?:, [PTORIA]\d)*) \|", PAGE, re.MULTILINE)
    assert rules
    assert sorted(rule for row in rows for rule in row.split(", ")) == sorted(rules)


@pytest.mark.parametrize("name", sorted(set(NAMED.findall(PAGE))))
def test_a_file_that_the_page_names_exists(name: str) -> None:
    assert any((place / name).exists() for place in PLACES)


def test_the_commands_that_the_page_names_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)}
    row = re.compile(r"^\| `([a-z-]+)`(?:, `([a-z-]+)`)? \|", re.MULTILINE)
    named = {name for pair in row.findall(PAGE) for name in pair if name}
    assert named
    assert named <= targets
