"""Where the processes of the chaos test kill themselves: points in the life of an event that travels over a broker."""

import signal

from deaths import POINTS, Arm, after_every, before, die

from mailroom import Mailroom
from mailroom.messaging.transports.azure_service_bus.intake import Intake
from mailroom.messaging.transports.azure_service_bus.publisher import Publisher as ServiceBusPublisher
from mailroom.messaging.transports.rabbitmq.publisher import Publisher as RabbitMQPublisher
from mailroom.messaging.transports.rabbitmq.subscription import Subscription

TAKE_OVER = "after the take-over"
Points = dict[str, Arm]


def _known(*names: str) -> Points:
    return {name: POINTS[name] for name in names}


def _of_a_relay(publisher: type) -> Points:
    return {
        **_known(TAKE_OVER, "after the claim"),
        "before the publish": before(publisher, "send"),
        "after the confirm": after_every(publisher, "send"),
        **_known("before the stamp", "before the stamp's commit", "after the stamp"),
    }


PRODUCER = _known("after the insert", "after the commit")
CONSUMER = _known(
    "before the handler", "after the handler", "before the handler's commit", "after the handler's commit"
)
NAMED: dict[str, dict[str, Points]] = {
    "rabbitmq": {
        "producer": PRODUCER,
        "relay": _of_a_relay(RabbitMQPublisher),
        "consumer": {
            **CONSUMER,
            "before the acknowledgement": before(Subscription, "acknowledge"),
            "after the acknowledgement": after_every(Subscription, "acknowledge"),
        },
    },
    "azure_service_bus": {
        "producer": PRODUCER,
        "relay": _of_a_relay(ServiceBusPublisher),
        "consumer": {
            **CONSUMER,
            "before the completion": before(Intake, "complete"),
            "after the completion": after_every(Intake, "complete"),
            # Those that consume publish nothing but copies.
            "before the copy": before(ServiceBusPublisher, "send"),
            "after the copy": after_every(ServiceBusPublisher, "send"),
        },
    },
}
"""By provider and role."""


def arm_by_signal(mailroom: Mailroom, provider: str, point: str | None) -> None:
    """After SIGUSR1 this process kills itself when it comes by that point the next time."""
    if point is None:
        return
    is_armed = False

    def arm(*_: object) -> None:
        nonlocal is_armed
        is_armed = True

    signal.signal(signal.SIGUSR1, arm)
    (arm_point,) = {points[point] for points in NAMED[provider].values() if point in points}
    arm_point(mailroom, lambda: die() if is_armed else None)
