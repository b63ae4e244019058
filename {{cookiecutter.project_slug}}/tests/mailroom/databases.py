"""Which databases the contract is tried on: those that `mailroom.testing` finds here."""

import pytest
from sqlalchemy import make_url

from mailroom.testing.databases import PRESENT, is_required, server

KINDS = [
    kind for kind in PRESENT if kind != "sqlserver" or server(kind) or is_required(kind) or PRESENT == ("sqlserver",)
]
"""A SQL Server is on few machines; test_engines.py says so where it is not tried."""

on_sqlite = pytest.mark.parametrize("database_url", [kind for kind in KINDS if kind == "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("database_url", [kind for kind in KINDS if kind == "postgres"], indirect=True)
on_servers = pytest.mark.parametrize("database_url", [kind for kind in KINDS if kind != "sqlite"], indirect=True)

WAITING = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "sqlserver": "SELECT count(*) FROM sys.dm_tran_locks WHERE request_status = 'WAIT'",
}
"""How many sessions wait for a lock of another one."""


def out_of_reach(url: str) -> str:
    """The same database in a place where there is none."""
    here = make_url(url)
    away = here.set(database="/no/such/folder/bank.db") if here.get_backend_name() == "sqlite" else here.set(port=1)
    return away.render_as_string(hide_password=False)
