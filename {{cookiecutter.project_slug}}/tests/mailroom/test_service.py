"""Whatever a service runs ends with it (contract A3)."""

import asyncio

import pytest

from mailroom import service


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AGAIN_SECONDS", 0.01)
    swallowed = 0

    async def shake_hands() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = asyncio.create_task(shake_hands())
    await asyncio.sleep(0)
    await service.end([task])
    assert task.cancelled()


async def test_what_ended_before_and_how_is_no_matter() -> None:
    async def fail() -> None:
        raise ValueError

    failed = asyncio.create_task(fail())
    await asyncio.wait([failed])
    await service.end([failed])
    await service.end([])
    assert isinstance(failed.exception(), ValueError)
