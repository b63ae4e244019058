"""Answers GET /live and GET /ready over HTTP, for whatever watches the process (contract A2).

It has a thread of its own, so that an event loop that is blocked is told instead of being silent.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

from mailroom.errors import ConfigurationError
from mailroom.health import Check, Examination
from mailroom.log import get_logger
from mailroom.settings import HealthSettings

logger = get_logger(__name__)

LOOP_SECONDS = 3.0
"""How long the event loop may take to answer; more than the database may take, which is asked from there."""
CLIENT_SECONDS = 5.0
"""How long a client may be silent while it asks."""
STOP_SECONDS = 5.0
POLL_SECONDS = 0.1

Question = Callable[[], Coroutine[Any, Any, tuple[Check, ...]]]


class HealthEndpoint:
    """200 if every check is fine, else 503; the body is JSON: `ok`, and the checks. Runs if `health.port` is set."""

    name = "HealthEndpoint"

    def __init__(self, settings: HealthSettings, examination: Examination) -> None:
        self._settings = settings
        self._questions: dict[str, Question] = {"/live": examination.live, "/ready": examination.ready}
        self._server: _Server | None = None
        self._thread: Thread | None = None
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Raises ConfigurationError if nobody can listen there."""
        loop = asyncio.get_running_loop()
        self._server = server = await self._listen(loop)
        self._ended = ended = asyncio.Event()

        def serve() -> None:
            try:
                server.serve_forever(POLL_SECONDS)
            finally:
                loop.call_soon_threadsafe(ended.set)

        self._thread = Thread(target=serve, name="health endpoint", daemon=True)
        self._thread.start()
        logger.info(
            "health can be asked for", host=self._settings.host, port=self._settings.port, paths="/live, /ready"
        )

    async def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        # It waits for the thread that serves, so it waits elsewhere: the loop goes on answering what was asked.
        stopper = Thread(target=server.shutdown, name="health endpoint stop", daemon=True)
        stopper.start()
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_SECONDS)
        except TimeoutError:
            logger.warning("the health endpoint does not stop; its thread ends with the process")
        else:
            for thread in (self._thread, stopper):  # both have nothing left to do
                thread.join(STOP_SECONDS)
        server.server_close()

    def failure(self) -> str | None:
        return None if self._thread is not None and self._thread.is_alive() else "its thread has ended"

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> "_Server":
        host, port = self._settings.host, self._settings.port
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, address = found[0]
            return _Server(family, address, self._questions, loop)
        except OSError as error:
            raise ConfigurationError(
                f"health.port = {port} on health.host = {host} cannot be listened on: {error.strerror}; name another "
                "one (HEALTH__PORT, HEALTH__HOST), or unset health.port to do without"
            ) from error


class _Server(ThreadingTCPServer):
    """A thread for each request: one that is slow to ask keeps no other waiting."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two programs listen on one port

    def __init__(
        self, family: int, address: Any, questions: dict[str, Question], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.address_family = family
        self.questions = questions
        self._loop = loop
        super().__init__(address, _Request)

    def checks(self, question: Question) -> tuple[Check, ...]:
        """What the event loop says, within a bound."""
        answer = asyncio.run_coroutine_threadsafe(question(), self._loop)
        try:
            return answer.result(LOOP_SECONDS)
        except TimeoutError:
            answer.cancel()
            detail = f"has not answered within {LOOP_SECONDS:g} seconds: something blocks it"
            return (Check(name="event loop", ok=False, detail=detail),)
        except Exception as error:
            logger.exception("health could not be examined")
            return (Check(name="examination", ok=False, detail=f"failed with {type(error).__name__}; see the log"),)

    def handle_error(self, request: object, client_address: object) -> None:
        """Usually a client that went away."""
        logger.debug("a question about health was not answered", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        question = self.server.questions.get(self.path.partition("?")[0])
        if question is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        checks = self.server.checks(question)
        ok = all(check.ok for check in checks)
        body = json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}).encode()
        self.send_response(HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Which Python this is is nobody's business."""
        return "mailroom"

    def log_message(self, *_: object) -> None:
        """No access log: probes come every few seconds."""
