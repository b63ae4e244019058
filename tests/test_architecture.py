"""The contracts of import-linter in a rendered project: each is broken once, and its name says what was broken."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import run

CLAIMS, ENGINES, TRANSPORTS = "persistence.claims", "persistence.engines", "messaging.transports"

# Each contract by what it begins with: a module of mailroom, and what it must not import.
BREACHES = {
    "mailroom is a framework": ("cli.events", "shop.models"),
    "mailroom has floors": ("outbox.lane", "mailroom.host"),
    "what belongs to one database": (f"{CLAIMS}.base", f"mailroom.{CLAIMS}.sqlite"),
    "a transport knows no other": (f"{TRANSPORTS}.base", f"mailroom.{TRANSPORTS}.in_process"),
    "posture decides from the settings": ("posture", "sqlalchemy"),
    "events need no database": ("codec", "sqlalchemy"),
    "only commands talk to a terminal": ("outbox.notice", "rich"),
}


@pytest.mark.parametrize(("contract", "breach"), BREACHES.items(), ids=BREACHES)
def test_an_import_that_does_not_belong_breaks_the_contract_that_says_so(
    own_shop: Path, contract: str, breach: tuple[str, str]
) -> None:
    module, imported = breach
    path = module_file(own_shop, module)
    path.write_text(f"{path.read_text(encoding='utf-8')}\nimport {imported}\n", encoding="utf-8")
    assert broken(own_shop) == [name_of(own_shop, contract)]


@pytest.mark.parametrize("beside", [f"{CLAIMS}.sqlite", f"{ENGINES}.sqlite", f"{TRANSPORTS}.in_process"])
def test_a_new_database_or_transport_has_to_be_given_its_place(own_shop: Path, beside: str) -> None:
    path = module_file(own_shop, beside)
    shutil.copy(path, path.with_name("new.py"))
    said = lint_imports(own_shop)
    assert f"- mailroom.{beside.rpartition('.')[0]}.new" in said


def test_every_contract_has_a_breach_here(shop: Path) -> None:
    assert len(names(shop)) == len(BREACHES)
    assert all(name_of(shop, contract) for contract in BREACHES)


def names(project: Path) -> list[str]:
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    return [contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]]


def name_of(project: Path, beginning: str) -> str:
    (name,) = [name for name in names(project) if name.startswith(beginning)]
    return name


def broken(project: Path) -> list[str]:
    return [line.removesuffix(" BROKEN") for line in lint_imports(project).splitlines() if line.endswith(" BROKEN")]


def lint_imports(project: Path) -> str:
    command = Path(sys.executable).with_name("lint-imports")
    return run(command, "--no-cache", cwd=project, env={"PYTHONPATH": str(project / "src"), "COLUMNS": "200"}).stdout


def module_file(project: Path, module: str) -> Path:
    return (project / "src" / "mailroom" / module.replace(".", "/")).with_suffix(".py")
