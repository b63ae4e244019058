"""What is said on the links of one connection: attach, send, receive, settle. The rules are those of the entities."""

from typing import Any, cast
from uuid import UUID

import proton
from proton import Condition, Delivery, Link, Receiver, Sender, Terminus

from .broker import Broker, address_of
from .codec import encoded, messages_of
from .connection import Connection
from .management import Request, answer
from .messages import DESCRIPTION, REASON
from .queues import LockLostError, Queue

CREDIT = 1000
CBS, MANAGEMENT = "$cbs", "/$management"
NOT_FOUND, UNAUTHORIZED = "amqp:not-found", "amqp:unauthorized-access"
TOO_LARGE, DECODE = "amqp:link:message-size-exceeded", "amqp:decode-error"
LOCK_LOST = "com.microsoft:message-lock-lost"


def condition(name: str, description: str) -> Condition:
    """The client hangs on a refusal that has no info."""
    return Condition(name, description, {"tracking-id": "double"})


class Links:
    """Handles the events of one connection. Each link knows what is at its other end by `path`."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._is_authorized = False
        self._receivers: list[tuple[Sender, str]] = []
        """Links that messages go out on, and the entity that each is for."""
        self._answers: dict[tuple[int, str], Sender] = {}
        """Links that answers go out on, by session and address."""
        broker.connections[connection] = self

    def on_lost(self) -> None:
        self._broker.connections.pop(self._connection, None)
        self._receivers.clear()

    def on_connection_remote_open(self, event: Any) -> None:
        event.connection.container = "servicebus-double"
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_session_remote_close(self, event: Any) -> None:
        event.session.close()

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()

    def on_link_remote_close(self, event: Any) -> None:
        self._forget(event.link)
        event.link.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self._forget(event.link)
        event.link.detach()

    def on_link_remote_open(self, event: Any) -> None:
        link: Link = event.link
        terminus = link.remote_source if link.is_sender else link.remote_target
        path = address_of(terminus.address or "")
        refusal = self._refusal_of_attach(link, path)
        if refusal is not None:
            self._refuse_link(link, refusal)
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.path = path
        if link.is_receiver:
            target = self._broker.namespace.target(path)
            link.max_message_size = target.limits.max_message_size if target else 0
        link.open()
        if link.is_receiver:
            cast(Receiver, link).flow(CREDIT)
        elif self._is_request_path(path):
            self._answers[_session(link), path] = cast(Sender, link)
        else:
            self._receivers.append((cast(Sender, link), path))

    def on_delivery(self, event: Any) -> None:
        delivery: Delivery = event.delivery
        if event.link.is_receiver:
            self._came_in(event.link, delivery)
        elif delivery.updated:
            self._settled(event.link, delivery)

    def pump(self) -> bool:
        """Sends one message on each link that has credit. Whether there was any."""
        sent = [self._send_one(link, path) for link, path in self._receivers if link.credit > 0]
        return any(sent)

    def drain(self) -> None:
        """Gives back the credit of those who want what is there and no more."""
        for link, _ in self._receivers:
            if link.credit > 0 and link.drain_mode:
                link.drained()

    def _forget(self, link: Link) -> None:
        self._receivers = [(known, path) for known, path in self._receivers if known != link]
        self._answers = {key: known for key, known in self._answers.items() if known != link}

    def _is_request_path(self, path: str) -> bool:
        return path == CBS or path.endswith(MANAGEMENT)

    def _refusal_of_attach(self, link: Link, path: str) -> Condition | None:
        if path == CBS:
            return None
        if not self._is_authorized:
            return condition(UNAUTHORIZED, f"Unauthorized access. 'Send,Listen' claims are required for '{path}'.")
        entity = path.removesuffix(MANAGEMENT)
        namespace = self._broker.namespace
        is_known = namespace.source(entity) is not None or namespace.target(entity) is not None
        if is_known and not self._is_request_path(path):
            is_known = (namespace.source(path) if link.is_sender else namespace.target(path)) is not None
        if not is_known:
            return condition(NOT_FOUND, f"The messaging entity '{entity}' could not be found.")
        if not self._broker.is_enabled(entity):
            return condition("com.microsoft:entity-disabled", f"The messaging entity '{entity}' is disabled.")
        return None

    def _refuse_link(self, link: Link, refusal: Condition) -> None:
        """An attach that leads nowhere, and a detach that says why."""
        for terminus in (link.source, link.target):
            terminus.type = Terminus.UNSPECIFIED
        link.open()
        link.condition = refusal
        link.close()

    def _came_in(self, link: Receiver, delivery: Delivery) -> None:
        if not hasattr(delivery, "form"):
            delivery.form = self._connection.formats.popleft()
        if delivery.partial or not delivery.readable:
            return
        data = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        if self._is_request_path(link.path):
            self._answer(link, data)
            refusal = None
        else:
            refusal = self._take(link, data, delivery.form)
        if link.state & proton.Endpoint.LOCAL_CLOSED:
            return
        if refusal is not None:
            delivery.local.condition = refusal
        delivery.update(Delivery.ACCEPTED if refusal is None else Delivery.REJECTED)
        delivery.settle()
        if link.credit < CREDIT // 2:
            link.flow(CREDIT - link.credit)

    def _take(self, link: Receiver, data: bytes, form: int) -> Condition | None:
        """Puts what was sent into the entity, all of it or nothing. Returns why it did not."""
        path: str = link.path
        refused = self._broker.faults.of_send(path)
        if refused is not None:
            return condition(*refused)
        target = self._broker.namespace.target(path)
        if target is None:
            link.condition = condition(NOT_FOUND, f"The messaging entity '{path}' could not be found.")
            link.close()
            return None
        most = target.limits.max_message_size
        if len(data) > most:
            return condition(
                TOO_LARGE,
                f"The received message (size:{len(data)} bytes) exceeds the limit ({most} bytes) "
                "currently allowed on the link.",
            )
        try:
            messages = messages_of(data, form)
        except ValueError as error:
            return condition(DECODE, str(error))
        for message in messages:
            self._broker.namespace.send(path, message)
        return None

    def _answer(self, link: Receiver, data: bytes) -> None:
        message = proton.Message()
        message.decode(data)
        body: Any = message.body
        if link.path == CBS:
            token = body if isinstance(body, str) else bytes(body).decode()
            self._is_authorized = self._broker.key.accepts(token)
            status = (202, "Accepted") if self._is_authorized else (401, "InvalidSignature: The token is not valid.")
            self._reply(link, message.id, {"status-code": status[0], "status-description": status[1]}, None)
            return
        properties: dict[str, Any] = message.properties or {}
        path = link.path.removesuffix(MANAGEMENT)
        found = answer(self._broker, Request(path, properties.get("operation"), body or {}))
        told = {"statusCode": found.status, "statusDescription": found.description}
        if found.condition:
            told["errorCondition"] = found.condition
        self._reply(link, message.id, told, found.body)

    def _reply(self, link: Receiver, to: Any, properties: dict[str, Any], body: Any) -> None:
        link_back = self._answers.get((_session(link), link.path))
        if link_back is None:
            return
        reply = proton.Message(body=body, correlation_id=to)
        # The client takes no wider integers here.
        narrow = {name: proton.int32(value) if isinstance(value, int) else value for name, value in properties.items()}
        reply.properties = cast(Any, narrow)
        delivery = link_back.delivery(link_back.delivery_tag())
        link_back.send(reply.encode())
        link_back.advance()
        delivery.settle()

    def _send_one(self, link: Sender, path: str) -> bool:
        queue = self._broker.namespace.source(path)
        if queue is None:
            self._forget(link)
            link.condition = condition(NOT_FOUND, f"The messaging entity '{path}' could not be found.")
            link.close()
            return False
        is_settled = link.remote_snd_settle_mode == Link.SND_SETTLED
        held = queue.take() if is_settled else queue.receive()
        if held is None:
            return False
        delivery = link.delivery(cast(Any, (held.lock or UUID(int=held.number)).bytes_le))
        delivery.lock = held.lock
        link.send(encoded(held))
        link.advance()
        if is_settled:
            delivery.settle()
        return True

    def _settled(self, link: Sender, delivery: Delivery) -> None:
        outcome = delivery.remote_state
        lock = getattr(delivery, "lock", None)
        if lock is None or not outcome:
            if delivery.settled:
                delivery.settle()
            return
        queue = self._broker.namespace.source(link.path)
        try:
            if queue is None:
                raise LockLostError(str(lock))
            _apply(queue, lock, delivery)
        except LockLostError:
            outcome = Delivery.REJECTED
            delivery.local.condition = condition(
                LOCK_LOST,
                "The lock supplied is invalid. Either the lock expired, or the message has already been "
                "removed from the queue.",
            )
        delivery.lock = None
        if not delivery.settled:
            delivery.local.failed = delivery.remote.failed
            delivery.local.undeliverable = delivery.remote.undeliverable
            delivery.update(outcome)
        delivery.settle()


def _apply(queue: Queue, lock: UUID, delivery: Delivery) -> None:
    """Does to the message what the receiver decided. Raises LockLostError."""
    outcome = delivery.remote_state
    if outcome == Delivery.ACCEPTED:
        queue.complete(lock)
    elif outcome == Delivery.MODIFIED and delivery.remote.undeliverable:
        queue.defer(lock)
    elif outcome == Delivery.MODIFIED:
        queue.abandon(lock)
    elif outcome == Delivery.REJECTED:
        told: Any = delivery.remote.condition
        info = {str(name): value for name, value in ((told and told.info) or {}).items()}
        queue.dead_letter(lock, info.get(REASON), info.get(DESCRIPTION))
    elif outcome == Delivery.RELEASED:
        queue.release(lock)


def _session(link: Link) -> int:
    return hash(link.session)
