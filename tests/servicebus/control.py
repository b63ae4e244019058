"""What the double is told while it runs: one JSON object in, one out, over HTTP."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from .broker import Broker
from .faults import Refusal
from .namespace import Topic
from .queues import NotFoundError


class Control:
    """Each command is a method that its name leads to, and takes what it was given by name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._commands: dict[str, Callable[..., Any]] = {
            "drop_connections": broker.drop_connections,
            "refuse_connections": self._refuse_connections,
            "refuse": self._refuse,
            "throttle": broker.faults.throttle,
            "expire_locks": broker.namespace.lose_locks,
            "clear_faults": broker.faults.clear,
            "stop": broker.stop,
            "start": broker.start,
            "restart": self._restart,
            "empty": self._empty,
            "reset": self._reset,
            "held": self._held,
            "state": self._state,
        }

    def application(self) -> web.Application:
        made = web.Application()
        made.router.add_post("/", self._handle)
        return made

    async def _handle(self, request: web.Request) -> web.Response:
        told = await request.json()
        command = told.pop("command")
        try:
            result = self._commands[command](**told)
            if asyncio.iscoroutine(result):
                result = await result
        except NotFoundError as error:
            return web.json_response({"error": f"there is no {error}"}, status=404)
        except (KeyError, TypeError, ValueError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        self._broker.pump()
        return web.json_response({"result": result})

    async def _restart(self, seconds: float = 0) -> None:
        self._broker.stop()
        await asyncio.sleep(seconds)
        await self._broker.start()

    def _refuse_connections(self, refuses: bool) -> None:
        self._broker.faults.refuses_connections = refuses

    def _refuse(self, condition: str, description: str, entity: str | None, times: int) -> None:
        entity = None if entity is None else entity.lower()
        self._broker.faults.refuse(Refusal(condition, description, entity, times))

    def _held(self, entity: str) -> dict[str, Any]:
        namespace = self._broker.namespace
        namespace.pass_time()
        queue, topic = namespace.source(entity), namespace.target(entity)
        if queue is not None:
            return {**queue.counts(), "messages": [held.told() for held in queue]}
        if isinstance(topic, Topic):
            waiting = list(topic.scheduled.values())
            return {"scheduled": len(waiting), "messages": [held.told() for held in waiting]}
        raise NotFoundError(entity)

    def _empty(self, entity: str) -> None:
        queue = self._broker.namespace.source(entity)
        if queue is None:
            raise NotFoundError(entity)
        queue.clear()

    async def _reset(self) -> None:
        self._broker.namespace.clear()
        self._broker.faults.clear()
        self._broker.drop_connections()
        await self._broker.start()

    def _state(self) -> dict[str, Any]:
        broker = self._broker
        return {
            "connections": len(broker.connections),
            "accepted": broker.accepted,
            "queues": [queue.name for queue in broker.namespace.queues.values()],
            "topics": [topic.name for topic in broker.namespace.topics.values()],
        }
