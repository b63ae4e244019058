"""What is wrong with the payload of an event, in words that hold none of its values (contract O3, R5)."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import core_schema

_PROBLEMS_SHOWN = 5
_KNOWN_ERRORS = frozenset(get_args(core_schema.ErrorType))


def problems(error: ValidationError) -> str:
    """What pydantic found, without what it found it in: no values, no keys of dicts, no words of validators."""
    found = [
        f"{_location(one['loc'])}: {_reason(one['type'], one['msg'], one.get('ctx', {}))}"
        for one in error.errors(include_url=False, include_input=False)
    ]
    distinct = list(dict.fromkeys(found))
    more = len(distinct) - _PROBLEMS_SHOWN
    return "; ".join(distinct[:_PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _location(loc: tuple[int | str, ...]) -> str:
    if not loc:
        return "the event"
    field, *steps = loc
    return f"field {field}" + "".join(f"[{step}]" if isinstance(step, int) else "[…]" for step in steps)


def _reason(code: str, text: str, context: Mapping[str, Any]) -> str:
    is_ours_to_show = code in _KNOWN_ERRORS and not {"error", "tag"} & context.keys()
    return text if is_ours_to_show else code
