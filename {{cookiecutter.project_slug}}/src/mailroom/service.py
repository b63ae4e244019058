"""The one way in which everything that runs is started and stopped."""

from typing import Protocol


class Service(Protocol):
    """Something that runs beside the code of the user, from the start of a host to its end.

    `start` returns once it runs. `stop` returns once nothing of it runs any more; it may be called twice, and
    before `start`, and then does nothing.
    """

    @property
    def name(self) -> str:
        """The name that `posture` shows."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
