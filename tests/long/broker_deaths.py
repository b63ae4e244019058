"""Where the processes of the chaos test kill themselves: points in the life of an event that travels over a broker."""

import signal

from deaths import POINTS, Arm, after_every, before, die

from mailroom import Mailroom
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.subscription import Subscription

TAKE_OVER = "after the take-over"

PRODUCER: dict[str, Arm] = {name: POINTS[name] for name in ("after the insert", "after the commit")}
RELAY: dict[str, Arm] = {
    **{name: POINTS[name] for name in (TAKE_OVER, "after the claim")},
    "before the publish": before(Publisher, "send"),
    "after the confirm": after_every(Publisher, "send"),
    **{name: POINTS[name] for name in ("before the stamp", "before the stamp's commit", "after the stamp")},
}
CONSUMER: dict[str, Arm] = {
    **{name: POINTS[name] for name in ("before the handler", "after the handler")},
    **{name: POINTS[name] for name in ("before the handler's commit", "after the handler's commit")},
    "before the acknowledgement": before(Subscription, "acknowledge"),
    "after the acknowledgement": after_every(Subscription, "acknowledge"),
}


def arm_by_signal(mailroom: Mailroom, point: str | None) -> None:
    """After SIGUSR1 this process kills itself when it comes by that point the next time."""
    if point is None:
        return
    is_armed = False

    def arm(*_: object) -> None:
        nonlocal is_armed
        is_armed = True

    signal.signal(signal.SIGUSR1, arm)
    {**PRODUCER, **RELAY, **CONSUMER}[point](mailroom, lambda: die() if is_armed else None)
