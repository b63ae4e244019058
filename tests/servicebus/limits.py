"""What an entity is told of itself: the texts of its description, their defaults, and what they come to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

FOREVER = "P10675199DT2H48M5.4775807S"
STANDARD_KILOBYTES = 256

QUEUE = {
    "LockDuration": "PT1M",
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "RequiresSession": "false",
    "DefaultMessageTimeToLive": FOREVER,
    "DeadLetteringOnMessageExpiration": "false",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "MaxDeliveryCount": "10",
    "EnableBatchedOperations": "true",
    "IsAnonymousAccessible": "false",
    "Status": "Active",
    "SupportOrdering": "true",
    "AutoDeleteOnIdle": FOREVER,
    "EnablePartitioning": "false",
    "EntityAvailabilityStatus": "Available",
    "EnableExpress": "false",
}
TOPIC = {
    "DefaultMessageTimeToLive": FOREVER,
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "EnableBatchedOperations": "true",
    "FilteringMessagesBeforePublishing": "false",
    "IsAnonymousAccessible": "false",
    "Status": "Active",
    "SupportOrdering": "true",
    "AutoDeleteOnIdle": FOREVER,
    "EnablePartitioning": "false",
    "EntityAvailabilityStatus": "Available",
    "EnableExpress": "false",
}
SUBSCRIPTION = {
    "LockDuration": "PT1M",
    "RequiresSession": "false",
    "DefaultMessageTimeToLive": FOREVER,
    "DeadLetteringOnMessageExpiration": "false",
    "DeadLetteringOnFilterEvaluationExceptions": "true",
    "MaxDeliveryCount": "10",
    "EnableBatchedOperations": "true",
    "Status": "Active",
    "AutoDeleteOnIdle": FOREVER,
    "EntityAvailabilityStatus": "Available",
}

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def seconds(duration: str) -> float:
    """Raises ValueError for what is no duration in ISO 8601."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise ValueError(f"{duration!r} is no duration")
    return sum(float(amount) * _SECONDS[unit] for unit, amount in found.groupdict().items() if amount)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a description comes to for the messages. Times are seconds, sizes are bytes."""

    lock: float = 60
    max_delivery_count: int | None = None
    """None in a dead-letter sub-queue: nothing leaves it by itself."""
    time_to_live: float | None = None
    dead_letters_expired: bool = False
    duplicate_window: float | None = None
    """None if duplicates are not looked for."""
    max_message_size: int = STANDARD_KILOBYTES * 1024
    forward_to: str | None = None
    is_enabled: bool = True


def limits_of(description: Mapping[str, str]) -> Limits:
    """Raises ValueError for a text that cannot be."""
    looks_for_duplicates = description.get("RequiresDuplicateDetection") == "true"
    time_to_live = description["DefaultMessageTimeToLive"]
    return Limits(
        lock=seconds(description.get("LockDuration", "PT1M")),
        max_delivery_count=int(description.get("MaxDeliveryCount", "10")),
        time_to_live=None if time_to_live == FOREVER else seconds(time_to_live),
        dead_letters_expired=description.get("DeadLetteringOnMessageExpiration") == "true",
        duplicate_window=seconds(description["DuplicateDetectionHistoryTimeWindow"]) if looks_for_duplicates else None,
        max_message_size=int(description.get("MaxMessageSizeInKilobytes") or STANDARD_KILOBYTES) * 1024,
        forward_to=_path_of(description.get("ForwardTo")),
        is_enabled=description.get("Status", "Active") == "Active",
    )


def _path_of(forward_to: str | None) -> str | None:
    """The client gives the target as an `sb://` URL."""
    if not forward_to:
        return None
    return re.sub(r"^[a-z]+://[^/]*/", "", forward_to).strip("/").lower()
