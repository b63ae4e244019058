"""What the service needs, as Microsoft's emulator reads it: its configuration file (contract I7)."""

import json
from typing import Any

from mailroom.messaging.transports.azure_service_bus.topology import EMULATOR_DELIVERIES, Topology

NAMESPACE = "sbemulatorns"
"""An emulator knows no other."""
TIME_TO_LIVE = "PT1H"
"""The longest that it takes. What expires is dead-lettered, and not dropped."""
SECONDS_PER_MINUTE = 60


def configuration(topology: Topology) -> str:
    """The text of the file. A service that handles nothing has no queue: rules that are none would take everything."""
    document = {
        "UserConfig": {
            "Namespaces": [
                {
                    "Name": NAMESPACE,
                    "Queues": [_queue(topology)] if topology.events else [],
                    "Topics": [_topic(topology)],
                }
            ],
            "Logging": {"Type": "File"},
        }
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _queue(topology: Topology) -> dict[str, Any]:
    return {
        "Name": topology.queue,
        "Properties": {
            "DeadLetteringOnMessageExpiration": True,
            "DefaultMessageTimeToLive": TIME_TO_LIVE,
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "ForwardDeadLetteredMessagesTo": "",
            "ForwardTo": "",
            "LockDuration": _duration(topology.lock_seconds),
            "MaxDeliveryCount": min(topology.delivery_limit, EMULATOR_DELIVERIES),
            "RequiresDuplicateDetection": False,
            "RequiresSession": False,
        },
    }


def _topic(topology: Topology) -> dict[str, Any]:
    return {
        "Name": topology.topic,
        "Properties": {
            "DefaultMessageTimeToLive": TIME_TO_LIVE,
            "DuplicateDetectionHistoryTimeWindow": "PT20S",
            "RequiresDuplicateDetection": False,
        },
        "Subscriptions": [_subscription(topology)] if topology.events else [],
    }


def _subscription(topology: Topology) -> dict[str, Any]:
    return {
        "Name": topology.subscription,
        "Properties": {
            "DeadLetteringOnMessageExpiration": True,
            "DefaultMessageTimeToLive": TIME_TO_LIVE,
            "ForwardDeadLetteredMessagesTo": "",
            "ForwardTo": topology.queue,
            "LockDuration": "PT1M",
            "MaxDeliveryCount": EMULATOR_DELIVERIES,
            "RequiresSession": False,
        },
        "Rules": [
            {
                "Name": name,
                "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": event}},
            }
            for name, event in topology.rules.items()
        ],
    }


def _duration(seconds: int) -> str:
    """In ISO 8601: PT1M30S."""
    minutes, rest = divmod(seconds, SECONDS_PER_MINUTE)
    return f"PT{f'{minutes}M' if minutes else ''}{f'{rest}S' if rest else ''}"
