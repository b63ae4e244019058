"""A clock that a test stops, and moves instead of waiting."""

from datetime import UTC, datetime, timedelta


class Clock:
    """Runs with the system's clock until it is frozen or moved. Calling it says what time it is, in UTC."""

    def __init__(self) -> None:
        self._frozen_at: datetime | None = None
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        return self._frozen_at if self._frozen_at is not None else datetime.now(UTC) + self._ahead

    def freeze(self, at: datetime | None = None) -> datetime:
        """Stops at a time, or at this moment; returns when that is. Raises ValueError for a naive datetime."""
        if at is not None and at.tzinfo is None:
            raise ValueError(f"{at!r} has no time zone; pass an aware datetime, for example datetime.now(UTC)")
        self._frozen_at = (at or self()).astimezone(UTC)
        return self._frozen_at

    def move(self, **by: float) -> None:
        """Moves by so much, named as for timedelta: `move(hours=1)`, `move(seconds=-5)`. A frozen clock stays so."""
        if self._frozen_at is not None:
            self._frozen_at += timedelta(**by)
        else:
            self._ahead += timedelta(**by)
