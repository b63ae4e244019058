"""A RabbitMQ node of a test's own, with its management API, which it may stop, kill and restart as it likes."""

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

DEBIAN = "/usr/lib/rabbitmq/bin"
UNPRIVILEGED = "rabbitmq"
"""The account that came with the server; where the tests run as root, the server need not."""
START_SECONDS = 120
STOP_SECONDS = 60


def program() -> str | None:
    """None where no server is installed."""
    return shutil.which("rabbitmq-server", path=os.pathsep.join([DEBIAN, os.environ["PATH"]]))


class OwnRabbitMQ:
    """A context manager; the node listens on 127.0.0.1 alone, lets guest in there, and is gone afterwards.

    What is durable outlives `stop`, `kill` and `restart`; the ports stay the same. A start takes some seconds.
    """

    def __init__(self, found: str) -> None:
        self._program = found
        self._folder = Path(tempfile.mkdtemp(prefix="mailroom-rabbitmq-"))
        self._amqp, self._management, self._distribution = _free_ports(3)
        self.node = f"{self._folder.name}@localhost"
        self.url = f"amqp://guest:guest@127.0.0.1:{self._amqp}/"
        self.management_url = f"http://guest:guest@127.0.0.1:{self._management}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the node has said, for a test that fails."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        try:
            self._write_configuration()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Returns once clients can connect. Raises RuntimeError, with what the node said, if that never happens."""
        if self.is_running:
            return
        with (self._folder / "log").open("ab") as into:
            self._process = subprocess.Popen(
                [self._program],
                user=UNPRIVILEGED if os.geteuid() == 0 else None,
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if not self.is_running or time.monotonic() > until:
                raise RuntimeError(f"the node does not start:\n{self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """As an operator does: connections are closed, and told why."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the node does not stop:\n{self.log}") from None
        self._process = None

    def kill(self) -> None:
        """A crash: nobody is told, and what is not on the disk is lost."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def _write_configuration(self) -> None:
        files = {
            "rabbitmq.conf": (
                f"listeners.tcp.default = 127.0.0.1:{self._amqp}\n"
                f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self._management}\n"
                "log.console = true\nlog.console.level = info\nlog.file = false\n"
                # A full disk or a busy machine is no part of what is tested.
                "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.absolute = 2GB\n"
            ),
            "enabled_plugins": "[rabbitmq_management].\n",
            "log": "",
        }
        for name, text in files.items():
            (self._folder / name).write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, UNPRIVILEGED)

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),  # where the cookie lies: this node knows no other
            "RUNNING_UNDER_SYSTEMD": "1",  # the process that was started is the node, not a script around it
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _answers(self) -> bool:
        """The management API is up only after everything else."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._management}/api/health/checks/local-alarms")
        request.add_header("Authorization", f"Basic {base64.b64encode(b'guest:guest').decode()}")
        try:
            socket.create_connection(("127.0.0.1", self._amqp), timeout=1).close()
            with urllib.request.urlopen(request, timeout=5):
                return True
        except OSError:
            return False


def _free_ports(count: int) -> list[int]:
    """All at once, so that none is given twice."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
