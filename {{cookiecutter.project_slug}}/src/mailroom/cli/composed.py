"""What commands do with the composed service, with every connection given back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mailroom.host import Mailroom
from mailroom.log import configure_logging

T = TypeVar("T")


class Composed:
    """`composed(work)` composes the service on a migrated database, lets `work` have it, and closes it.

    What it logs is told with its facts, from WARNING on: what the command prints is the news.
    """

    def __init__(self, mailroom: Callable[[], Mailroom]) -> None:
        self._mailroom = mailroom

    def __call__(self, work: Callable[[Mailroom], Awaitable[T]], data_source: str | None = None) -> T:
        """Raises SchemaError, with the command to run, if a database is not migrated: that of this source, or any."""

        async def checked(service: Mailroom) -> T:
            await service.ensure_migrated(*([] if data_source is None else [data_source]))
            return await work(service)

        return self.without_database(checked)

    def without_database(self, work: Callable[[Mailroom], Awaitable[T]]) -> T:
        """For what asks no database, and works where there is none."""

        async def run() -> T:
            service = self._mailroom()
            configure_logging(service.settings.logging, at_least=logging.WARNING)
            try:
                return await work(service)
            finally:
                await service.close()

        return asyncio.run(run())
