"""The application of docs/embedding.md under a real server: it relays in its own process, and stops in good order.

The page's own tests call it without a server. What they leave out is here: the lifespan, a commit that wakes the relay,
and a signal.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from checkout import ROOT, succeed
from walk import BIN, Walk, command_folder, shell

STARTED = re.compile(r"Uvicorn running on (http://\S+)")
NEVER = {"OUTBOX__POLLING_INTERVAL_SECONDS": "86400"}
PATIENCE_SECONDS = 60


@pytest.fixture
def walk(own_shop: Path, tmp_path: Path) -> Walk:
    """What the page has built by the time it starts the server."""
    walk = Walk(own_shop, {**shell(command_folder(tmp_path / "bin"), BIN), "PYTHONUNBUFFERED": "1", **NEVER})
    walk.take(ROOT / "docs" / "embedding.md", lambda heading: heading == "FastAPI")
    return walk


@pytest.fixture
def server(walk: Walk, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        ["uvicorn", "--factory", "shop.web:create_app", "--port", "0"],
        cwd=walk.folder,
        env={**os.environ, **walk.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_relays_what_a_request_commits_and_stops_on_a_signal(walk: Walk, server: "subprocess.Popen[str]") -> None:
    assert server.stderr is not None
    lines = iter(server.stderr.readline, "")
    address = next(found[1] for line in lines if (found := STARTED.search(line)))

    with httpx.Client(base_url=address) as client:
        placed = client.post("/orders", json={"sku": "tea", "quantity": 2})
        assert placed.status_code == 201
        assert client.post("/orders", json={"sku": "tea", "quantity": 101}).status_code == 409
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (reserved := client.get(f"/orders/{placed.json()}/reserved").json()) == []:
            assert time.monotonic() < deadline, "the relay was not woken by the commit"
        assert reserved == [2]

    server.send_signal(signal.SIGTERM)
    assert any("Application shutdown complete" in line for line in lines)
    assert server.wait() == -signal.SIGTERM  # uvicorn ends by the signal that it has handled
    stats = json.loads(succeed("shop", "outbox", "stats", "--json", cwd=walk.folder, env=walk.environment))
    assert (stats["processed"], stats["pending"], stats["leased"], stats["dead_lettered"]) == (1, 0, 0, 0)
