"""The $management node of an entity: what is asked of it beside the links, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proton import Data

from .broker import Broker
from .codec import array, elements, encoded, message_of, milliseconds, uuids
from .faults import SERVER_BUSY
from .queues import LockLostError, NotFoundError, Queue

LOCK_LOST, NOT_FOUND = "com.microsoft:message-lock-lost", "com.microsoft:message-not-found"


@dataclass(frozen=True)
class Request:
    path: str
    operation: Any
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    status: int
    description: str
    body: Any = None
    condition: str | None = None


def answer(broker: Broker, request: Request) -> Answer:
    """What goes wrong is an answer as well."""
    if broker.faults.is_busy():
        return Answer(503, "The request was terminated because the entity is being throttled.", None, SERVER_BUSY)
    operation = OPERATIONS.get(str(request.operation).removeprefix("com.microsoft:"))
    if operation is None:
        return Answer(501, f"{request.operation} is not implemented", None, "amqp:not-implemented")
    try:
        return operation(broker, request)
    except LockLostError as error:
        return Answer(410, f"The lock supplied is invalid: {error}", None, LOCK_LOST)
    except NotFoundError as error:
        return Answer(404, str(error), None, NOT_FOUND)
    except ValueError as error:
        return Answer(400, str(error), None, "com.microsoft:argument-error")


def _queue(broker: Broker, request: Request) -> Queue:
    queue = broker.namespace.source(request.path)
    if queue is None:
        raise NotFoundError(f"the messaging entity '{request.path}' could not be found")
    return queue


def _renew(broker: Broker, request: Request) -> Answer:
    queue = _queue(broker, request)
    until = [milliseconds(queue.renew(lock)) for lock in uuids(request.body["lock-tokens"])]
    return Answer(200, "OK", {"expirations": array(Data.TIMESTAMP, until)})


def _schedule(broker: Broker, request: Request) -> Answer:
    target = broker.namespace.target(request.path)
    if target is None:
        raise NotFoundError(f"the messaging entity '{request.path}' could not be found")
    messages = [message_of(bytes(each["message"])) for each in elements(request.body["messages"])]
    most = target.limits.max_message_size
    if any(message.size > most for message in messages):
        return Answer(403, f"a message exceeds the limit of {most} bytes", None, "amqp:link:message-size-exceeded")
    refused = broker.faults.of_send(request.path)
    if refused is not None:
        return Answer(503, refused[1], None, refused[0])
    numbers = [broker.namespace.send(request.path, message) for message in messages]
    return Answer(200, "OK", {"sequence-numbers": array(Data.LONG, numbers)})


def _cancel(broker: Broker, request: Request) -> Answer:
    for number in elements(request.body["sequence-numbers"]):
        broker.namespace.cancel(request.path, int(number))
    return Answer(200, "OK")


def _settle(broker: Broker, request: Request) -> Answer:
    queue, body = _queue(broker, request), request.body
    status = str(body["disposition-status"])
    settle: dict[str, Callable[[Any], None]] = {
        "completed": queue.complete,
        "abandoned": queue.abandon,
        "defered": queue.defer,
        "suspended": lambda lock: queue.dead_letter(
            lock, body.get("deadletter-reason"), body.get("deadletter-description")
        ),
    }
    if status not in settle:
        raise ValueError(f"{status!r} is no disposition")
    for lock in uuids(body["lock-tokens"]):
        settle[status](lock)
    return Answer(200, "OK")


def _peek(broker: Broker, request: Request) -> Answer:
    body = request.body
    held = _queue(broker, request).peek(int(body["from-sequence-number"]), int(body["message-count"]))
    if not held:
        return Answer(204, "No messages", {})
    return Answer(200, "OK", {"messages": [{"message": encoded(each, state=True)} for each in held]})


def _receive_deferred(broker: Broker, request: Request) -> Answer:
    queue, removes = _queue(broker, request), not int(request.body.get("receiver-settle-mode", 1))
    found = []
    for number in elements(request.body["sequence-numbers"]):
        held = queue.receive_deferred(int(number), removes=removes)
        lock = {} if held.lock is None else {"lock-token": held.lock}
        found.append({"message": encoded(held), **lock})
    return Answer(200, "OK", {"messages": found})


OPERATIONS: dict[str, Callable[[Broker, Request], Answer]] = {
    "renew-lock": _renew,
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "update-disposition": _settle,
    "peek-message": _peek,
    "receive-by-sequence-number": _receive_deferred,
}
