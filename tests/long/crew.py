"""The processes that do the work of the long tests, as the tests hold them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evidence import Evidence


class Worker:
    """One process that runs one job at a time; see worker.py."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "ALEMBIC_CONFIG"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._pid: int | None = None

    def start(self, do: str, evidence: Evidence, **how: Any) -> None:
        """Starts the job with this name, see worker.py, and returns once its process is there."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"do": do, "url": evidence.url, "folder": str(evidence.folder), **how}) + "\n"
        )
        self._process.stdin.flush()
        self._pid = self.read()["pid"]

    def read(self) -> dict[str, Any]:
        """The next report, waiting for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the worker ended with {self._process.wait()}; see its standard error")
        facts: dict[str, Any] = json.loads(line)
        if "exit" in facts:
            self._pid = None
        return facts

    def read_until(self, name: str) -> Any:
        """The next report of this name. Fails if the job ends before it."""
        while True:
            facts = self.read()
            if name in facts:
                return facts[name]
            assert "exit" not in facts, f"the job ended with {facts['exit']} before it reported {name}"

    def wait(self) -> tuple[int, list[dict[str, Any]]]:
        """How the job's process ended (minus the signal that killed it), and what it reported until then."""
        reports = []
        while "exit" not in (facts := self.read()):
            reports.append(facts)
        return facts["exit"], reports

    def run(self, do: str, evidence: Evidence, **how: Any) -> list[dict[str, Any]]:
        """Runs a job that must succeed. Returns what it reported."""
        self.start(do, evidence, **how)
        status, reports = self.wait()
        assert status == 0, f"{do} ended with {status}; see its standard error"
        return reports

    def signal(self, number: signal.Signals) -> None:
        assert self._pid is not None, "no job is running"
        os.kill(self._pid, number)

    def rest(self) -> None:
        """Kills the job that is running, if any."""
        if self._pid is not None:
            self.signal(signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        with self._process as process:
            if self._pid is not None:
                self.signal(signal.SIGKILL)
            process.kill()


Hire = Callable[[int], list[Worker]]
"""The fixture `hire`."""


class Crew:
    """Workers that outlive a test, since each takes a second to start."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def hire(self, count: int) -> list[Worker]:
        self._workers += [Worker() for _ in range(count - len(self._workers))]
        return self._workers[:count]

    def rest(self) -> None:
        for worker in self._workers:
            worker.rest()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
