"""Where an event that was read back differs from the one that was sent, if it does for good (contract O3)."""

from collections import deque
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import isnan
from typing import Any

from pydantic import BaseModel

_NAN = object()


def difference(sent: Any, read: Any, place: str = "") -> str | None:
    """The place where two values differ for good, or None.

    Slower than `==` and more patient: NaN is NaN, and an hour that a time zone has twice is still one moment.
    """
    parts = _parts(sent, read)
    for step, one, other in parts:
        if found := difference(one, other, f"{place}{step}"):
            return found
    return None if parts or _means_the_same(sent, read) else f"field {place.removeprefix('.')}"


def _parts(sent: Any, read: Any) -> list[tuple[str, Any, Any]]:
    """The corresponding parts of two containers of one type and shape; none for everything else."""
    if type(sent) is not type(read):
        return []
    if isinstance(sent, BaseModel):
        names = [*type(sent).model_fields, *(sent.__pydantic_extra__ or ()), *(sent.__pydantic_private__ or ())]
        return [(f".{name}", getattr(sent, name, None), getattr(read, name, None)) for name in names]
    if is_dataclass(sent):
        names = [field.name for field in fields(sent) if field.compare]
        return [(f".{name}", getattr(sent, name), getattr(read, name)) for name in names]
    if isinstance(sent, dict) and sent.keys() == read.keys():
        return [("[key]", value, read[key]) for key, value in sent.items()]
    if isinstance(sent, list | tuple | deque) and len(sent) == len(read):
        return [(f"[{index}]", *pair) for index, pair in enumerate(zip(sent, read, strict=True))]
    return []


def _means_the_same(sent: Any, read: Any) -> bool:
    try:
        return bool(_canonical(sent) == _canonical(read))
    except Exception:
        return False


def _canonical(value: Any) -> Any:
    """A stand-in that is equal for what means the same."""
    if isinstance(value, float) and isnan(value):
        return _NAN
    if isinstance(value, Decimal) and value.is_nan():
        return _NAN, str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(map(_canonical, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_canonical, value))
    return value
