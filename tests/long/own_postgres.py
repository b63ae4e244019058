"""A PostgreSQL server of a test's own, which it may restart as it likes."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

DEBIAN = "/usr/lib/postgresql"
UNPRIVILEGED = "postgres"
"""The server refuses to run as root; this account came with it."""


def programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where no server is installed."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl", path=str(Path(found).parent)):
        return Path(found).parent
    versions = sorted(Path(DEBIAN).glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


class OwnPostgres:
    """A context manager; the server listens on 127.0.0.1, trusts everybody there, and is gone afterwards."""

    def __init__(self, bin_folder: Path) -> None:
        self._bin = bin_folder
        self._folder = Path(tempfile.mkdtemp(prefix="mailroom-postgres-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"postgresql+asyncpg://postgres@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> "OwnPostgres":
        if os.geteuid() == 0:
            shutil.chown(self._folder, UNPRIVILEGED)
        self._run("initdb", "--username=postgres", "--auth=trust", "--no-sync")
        self._control("start")
        return self

    def __exit__(self, *_: object) -> None:
        self._control("stop", "--mode=immediate")
        shutil.rmtree(self._folder)

    def restart(self, mode: str) -> None:
        """`fast` ends every session; `immediate` is a crash, from which the server recovers."""
        self._control("restart", f"--mode={mode}")

    def _control(self, action: str, *more: str) -> None:
        settings = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        options = ("-o", settings, "--log", str(self._folder / "log")) if action != "stop" else ()
        self._run("pg_ctl", action, "--wait", "--silent", *options, *more)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), "--pgdata", str(self._folder / "data"), *arguments],
            user=UNPRIVILEGED if os.geteuid() == 0 else None,
            cwd=self._folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
