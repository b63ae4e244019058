"""How a service finds back to its namespace after more than one try (contract F12, R6).

As test_service_bus_faults.py: they need the double.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import databases
import pytest
from service_bus_support import Bus, transport_of
from support import handling, note

from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.azure_service_bus.intake import Intake

if TYPE_CHECKING:
    from servicebus.double import Double

pytestmark = [
    pytest.mark.parametrize("database_url", databases.KINDS[:1], indirect=True),
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[..., Any]


async def test_what_was_taken_before_an_outage_is_settled_after_it_whatever_was_tried_meanwhile(
    run_on_bus: Run, bus: Bus, double: "Double"
) -> None:
    async with run_on_bus(handling(note)) as mailroom:
        namespace = transport_of(mailroom).namespace
    await bus.publish(b"{}")
    intake = Intake(namespace, bus.queue)
    try:
        await intake.open()
        (message,) = await intake.take(1, seconds=10)
        double.refuse_connections()
        double.drop_connections()
        with pytest.raises(TransportUnavailableError):
            await intake.complete(message)
        for _ in range(2):
            with pytest.raises(TransportUnavailableError):
                await intake.open()
        double.refuse_connections(False)
        await intake.open()
        await intake.complete(message)
    finally:
        await intake.close()
        await namespace.close()
    assert double.held(bus.queue)["active"] == 0
