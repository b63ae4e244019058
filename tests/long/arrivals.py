"""What arrived at a queue of the test's own, whatever the broker, and in which order."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class Arrival(NamedTuple):
    message_id: str
    order: str
    sku: str
    number: int


def arrival(message_id: str | None, body: bytes) -> Arrival:
    event = json.loads(body)
    return Arrival(str(message_id), event["order_id"].replace("-", ""), event["sku"], event["number"])


def first_arrivals(arrived: Sequence[Arrival]) -> list[Arrival]:
    """In the order in which they came; whatever came again is left out."""
    first: dict[str, Arrival] = {}
    for one in arrived:
        first.setdefault(one.message_id, one)
    return list(first.values())


def numbers_by_sku(arrived: Sequence[Arrival]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for one in arrived:
        numbers[one.sku].append(one.number)
    return numbers
