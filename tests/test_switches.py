"""Another answer is an update, too: another transport or database arrives and leaves again, and takes nothing along."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from brokers import OwnNames
from checkout import ProjectOn
from examples import TRANSPORTS
from updating import (
    UPDATE,
    Copier,
    changed,
    commit,
    contents,
    handle_events,
    own_copy,
    shop,
    store_an_event,
    under_git,
)

if TYPE_CHECKING:
    from servicebus.double import Double


def answer(project: Path, copier: Copier, given: str) -> None:
    commit(project, "Before", "--allow-empty")
    copier(*UPDATE, "--data", given, cwd=project)


@pytest.mark.parametrize("there", [TRANSPORTS[1:], TRANSPORTS[:0:-1]], ids=" then ".join)
def test_another_transport_keeps_the_database_and_relays_what_was_stored_before_and_so_does_the_way_back(
    shop_on: ProjectOn, own_shop: Path, copier: Copier, own_names: OwnNames, own_double: "Double", there: Sequence[str]
) -> None:
    """As mailroom says where the settings name a transport that the project was made without. No migration appears."""
    brokers = {"rabbitmq": own_names.variables(), "azure_service_bus": own_double.variables, "in_process": {}}
    under_git(own_shop)
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)

    for handled, transport in enumerate([*there, "in_process"], start=1):
        answer(own_shop, copier, f"transport={transport}")
        assert contents(own_shop) == contents(shop_on("sqlite", transport))
        shop(own_shop, "db", "check")
        handle_events(own_shop, handled, **brokers[transport])
        store_an_event(own_shop, **brokers[transport])


def test_another_database_runs_the_same_code_and_the_way_back_finds_the_old_one_as_it_was(
    shop_on: ProjectOn, own_shop: Path, copier: Copier, postgres_url: str
) -> None:
    """As mailroom says where it finds a URL of a database that the project was made without."""
    before, on_postgres = contents(own_shop), contents(shop_on("postgres"))
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)

    answer(under_git(own_shop), copier, "database=postgres")
    assert contents(own_shop) == on_postgres
    url = {"DATABASE__URL": postgres_url}
    shop(own_shop, "db", "upgrade", **url)
    shop(own_shop, "db", "check", **url)
    store_an_event(own_shop, **url)
    handle_events(own_shop, 1, **url)

    answer(own_shop, copier, "database=sqlite")
    assert contents(own_shop) == before
    handle_events(own_shop, 1)


@pytest.mark.parametrize("at_first", ["sqlite", "postgres"])
def test_sql_server_comes_and_goes_without_a_migration_and_leaves_nothing_behind(
    shop_on: ProjectOn, copier: Copier, lint: Callable[[Path], None], tmp_path: Path, at_first: str
) -> None:
    """As far as can be seen without such a server: files, dependencies and settings are those of a fresh project."""
    project = own_copy(shop_on(at_first), tmp_path)
    before = contents(project)

    answer(project, copier, "database=sqlserver")
    assert contents(project) == contents(shop_on("sqlserver"))
    assert not any(name.startswith("migrations/") for name in changed(project))
    lint(project)

    answer(project, copier, f"database={at_first}")
    assert contents(project) == before
