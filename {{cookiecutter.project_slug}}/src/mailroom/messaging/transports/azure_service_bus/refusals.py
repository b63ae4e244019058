"""What went wrong at the namespace, told as an error of ours (contract R4).

The client has a class for some of the service's conditions; the others it raises as they come.
"""

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from mailroom.errors import (
    ConnectionLostError,
    LoginRefusedError,
    MailroomError,
    PublishError,
    TransportUnavailableError,
)

FAILURES = (AzureError, OSError, ValueError)
"""What the client raises; a ValueError says that a link of it was closed meanwhile."""

BUSY = (ServiceBusServerBusyError, ServiceBusQuotaExceededError)
NOT_LET_IN = (ServiceBusAuthenticationError, ServiceBusAuthorizationError, ClientAuthenticationError)
NOT_THERE = (MessagingEntityNotFoundError, MessagingEntityDisabledError)
BROKEN = (OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError, OSError, TimeoutError)

LOGIN_CONDITIONS = ("amqp:client-error", "amqp:unauthorized-access", "com.microsoft:auth-failed")
LINK_CONDITIONS = ("amqp:connection", "amqp:session", "amqp:link", "amqp:socket-error", "amqp:internal-error")


class EntityMissingError(TransportUnavailableError):
    """A topic or queue is not there, or disabled: it has to be made, or made again."""


class LockLostError(MailroomError):
    """The message is no longer this service's own: it comes again, to this instance or to another."""


def while_connecting(error: BaseException, host: str) -> TransportUnavailableError:
    """Nothing was sent yet."""
    condition = condition_of(error)
    if isinstance(error, NOT_LET_IN) or condition in LOGIN_CONDITIONS:
        return LoginRefusedError(
            f"{host} refuses the login: {describe(error)}",
            remedy="check service_bus.connection_string; or, with service_bus.namespace, who you are in Azure",
        )
    if isinstance(error, NOT_THERE):
        return EntityMissingError(f"{host} does not have what is asked for: {describe(error)}")
    return TransportUnavailableError(
        f"{host} cannot be reached: {describe(error)}",
        remedy="start the emulator (docker compose up -d --wait), or check service_bus.connection_string or .namespace",
    )


def while_sending(error: BaseException, host: str) -> MailroomError:
    """Messages were in flight: what breaks now makes suspects of them; what the service refuses is their own doing."""
    if isinstance(error, BUSY):
        return TransportUnavailableError(f"{host} is busy and takes nothing for now: {describe(error)}")
    if isinstance(error, (*NOT_LET_IN, *NOT_THERE)):
        return while_connecting(error, host)
    if is_of_the_link(error):
        return ConnectionLostError(f"the connection broke while the message was in flight: {describe(error)}")
    return PublishError(f"{host} refused the message: {describe(error)}")


def is_of_the_link(error: BaseException) -> bool:
    """Whether it says nothing about a message: connection, link, or no answer in time."""
    if isinstance(error, BROKEN):
        return True
    if isinstance(error, (MessageSizeExceededError, MessageLockLostError)):
        return False
    if isinstance(error, ServiceBusError):
        condition = condition_of(error)
        return condition is None or condition.startswith(LINK_CONDITIONS)
    return True


def condition_of(error: BaseException) -> str | None:
    """What the service calls it, such as `com.microsoft:server-busy`."""
    inner = error.inner_exception if isinstance(error, AzureError) else None
    condition = getattr(inner, "condition", None)
    if condition is None:
        return None
    value = getattr(condition, "value", condition)
    return value.decode() if isinstance(value, bytes) else str(value)


def describe(error: BaseException) -> str:
    """The service's own words where there are any, on one line, without the client's commonplaces."""
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer in time"
    words = str(error).split("\n")[0].strip()
    return words.removeprefix("Handler failed: ") or type(error).__name__
