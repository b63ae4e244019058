"""The contracts of import-linter in a rendered project: each is broken once, and its name says what was broken."""

import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import run

# Each contract by what it begins with: a module of the project, and an import that does not belong there.
BREACHES = {
    "mailroom is a framework": ("mailroom/cli/events.py", "import shop.models"),
    "mailroom has floors": ("mailroom/outbox/lane.py", "import mailroom.host"),
    "a database's claims know no other": ("mailroom/persistence/claims/base.py", "import mailroom.persistence.claims.sqlite"),
    "a transport knows no other": ("mailroom/messaging/transports/base.py", "import mailroom.messaging.transports.in_process"),
    "posture decides from the settings": ("mailroom/posture.py", "import sqlalchemy"),
    "events need no database": ("mailroom/codec.py", "import sqlalchemy"),
    "only commands talk to a terminal": ("mailroom/outbox/notice.py", "import rich"),
}  # fmt: skip


@pytest.mark.parametrize(("contract", "breach"), BREACHES.items(), ids=BREACHES)
def test_an_import_that_does_not_belong_breaks_the_contract_that_says_so(
    own_shop: Path, contract: str, breach: tuple[str, str]
) -> None:
    module, statement = breach
    path = own_shop / "src" / module
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{statement}\n", encoding="utf-8")
    assert broken(own_shop) == [name_of(own_shop, contract)]


@pytest.mark.parametrize("beside", ["persistence/claims/sqlite.py", "messaging/transports/in_process.py"])
def test_a_new_database_or_transport_has_to_be_given_its_place(own_shop: Path, beside: str) -> None:
    path = own_shop / "src" / "mailroom" / beside
    shutil.copy(path, path.with_name("new.py"))
    done = lint_imports(own_shop)
    assert done[0] == 1
    assert "new" in done[1]


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
    said = lint_imports(project)[1].splitlines()
    return [line.removesuffix(" BROKEN") for line in said if line.endswith(" BROKEN")]


def lint_imports(project: Path) -> tuple[int, str]:
    command = Path(sys.executable).with_name("lint-imports")
    done = run(command, "--no-cache", cwd=project, env={"PYTHONPATH": str(project / "src"), "COLUMNS": "200"})
    return done.returncode, done.stdout
