"""A management API for tests: it answers with what was recorded from RabbitMQ's, and notes what it was asked."""

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self


class Api:
    """On a port of its own, for the user anna, whose password holds what a URL has to quote."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._at = f"127.0.0.1:{server.server_address[1]}"
        self.url = f"http://anna:s%40me@{self._at}"
        self.without_login = f"http://{self._at}"
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.status = 200
        self.answer = b"[]"
        self.location: str | None = None

    def bind(self, exchange: str, queue: str, *events: str) -> None:
        """From now on these are the bindings."""
        one = {"source": exchange, "vhost": "/", "destination": queue, "destination_type": "queue", "arguments": {}}
        self.answer = json.dumps([one | {"routing_key": event, "properties_key": event} for event in events]).encode()

    def forget(self) -> None:
        """From now on there are none."""
        self.answer = b"[]"

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(self.path)
                login = self.headers.get("Authorization", "").removeprefix("Basic ")
                api.logins.append(b64decode(login).decode())
                self.send_response(api.status)
                self.send_header("Content-Length", str(len(api.answer)))
                if api.location is not None:
                    self.send_header("Location", api.location)
                self.end_headers()
                self.wfile.write(api.answer)

            def log_message(self, format: str, *arguments: object) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            api = cls(server)
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield api
            finally:
                server.shutdown()
                thread.join()
