"""A PgBouncer of a test's own, in front of a server of PostgreSQL."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import URL, make_url

DEBIAN = "/usr/sbin"
UNPRIVILEGED = "nobody"
"""It refuses to run as root."""


def program() -> str | None:
    """None where it is not installed."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ["PATH"], DEBIAN]))


class OwnPgBouncer:
    """A context manager; it listens on 127.0.0.1, trusts everybody there, and is gone afterwards.

    `pool_mode` is `transaction` or `session`. `url` leads to the same database as `server` does, through it.
    """

    def __init__(self, found: str, server: str, pool_mode: str) -> None:
        self._program = found
        self._server = make_url(server)
        self._mode = pool_mode
        self._folder = Path(tempfile.mkdtemp(prefix="mailroom-pgbouncer-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes]

    def url(self, **query: Any) -> str:
        here: URL = self._server.set(host="127.0.0.1", port=self._port).update_query_dict(query)
        return here.render_as_string(hide_password=False)

    def __enter__(self) -> "OwnPgBouncer":
        server = self._server
        users, ini, log = (self._folder / name for name in ("users", "ini", "log"))
        users.write_text(f'"{server.username}" "{server.password or ""}"\n', encoding="utf-8")
        ini.write_text(
            f"[databases]\n* = host={server.host} port={server.port or 5432}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {users}\npool_mode = {self._mode}\ndefault_pool_size = 60\n",
            encoding="utf-8",
        )
        if os.geteuid() == 0:
            for path in (self._folder, users, ini):
                shutil.chown(path, UNPRIVILEGED)
        with log.open("wb") as into:
            self._process = subprocess.Popen(
                [self._program, str(ini)],
                user=UNPRIVILEGED if os.geteuid() == 0 else None,
                cwd=self._folder,
                stdout=into,
                stderr=subprocess.STDOUT,
            )
        while not self._answers():
            assert self._process.poll() is None, log.read_text(encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
