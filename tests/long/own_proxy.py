"""The TCP proxy of the framework's tests in a thread of its own, for tests whose processes connect through it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self

from rabbitmq_support import Proxy

MUTE_SECONDS = 0.1


class OwnProxy:
    """A context manager; `url` leads to the target through it."""

    def __init__(self, target: str) -> None:
        self._proxy = Proxy(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._do(self._proxy.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Breaks every connection."""
        self._do(self._cut())

    def swallow_and_cut(self) -> None:
        """What is sent in the last moments before the cut is taken, and arrives nowhere."""
        self._do(self._swallow_and_cut())

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _swallow_and_cut(self) -> None:
        self._proxy.is_silent = True
        await asyncio.sleep(MUTE_SECONDS)
        self._proxy.cut()
        self._proxy.is_silent = False

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
