"""What is wrong with a setting, in one line that names it and the nearest right name, and never shows a secret."""

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from inspect import isclass
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

DELIMITER = "__"
SECRET_WORDS = ("password", "secret", "token", "credential", "api_key")
"""A setting whose name holds one of these is taken for a secret, whatever its type."""

LONGEST_SHOWN = 60
PROJECT_ERRORS = ("value_error", "assertion_error")
"""What validators of a project raise, in their own words."""

Key = tuple[str, ...]
"""The names of a setting from the outside in: ("message_bus", "enable_outbox")."""


class Origin(NamedTuple):
    """Where a value was given: as `Settings.source` answers, and as an error points at it."""

    source: str
    where: str


def leaves(model: type[BaseModel], prefix: Key = ()) -> dict[Key, FieldInfo]:
    """Every setting of the model and of its sections."""
    found: dict[Key, FieldInfo] = {}
    for name, info in model.model_fields.items():
        section = section_of(info)
        found |= leaves(section, (*prefix, name)) if section else {(*prefix, name): info}
    return found


def sections(known: Iterable[Key]) -> set[Key]:
    """The sections that those settings are in."""
    return {key[:length] for key in known for length in range(1, len(key))}


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model that the field holds, if it is a section."""
    only = bare(info.annotation)
    return only if isclass(only) and issubclass(only, BaseModel) else None


def named_section_of(info: FieldInfo) -> type[BaseModel] | None:
    """The model of each entry, if the field is a table of sections."""
    kind = bare(info.annotation)
    inner = bare(get_args(kind)[1]) if get_origin(kind) is dict else None
    return inner if isclass(inner) and issubclass(inner, BaseModel) else None


def bare(annotation: Any) -> Any:
    """The type itself, without `Annotated` and without `| None`."""
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    if is_union(annotation):
        some = [one for one in get_args(annotation) if one is not NoneType]
        return bare(some[0]) if len(some) == 1 else annotation
    return annotation


def is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def dotted(key: Key) -> str:
    return ".".join(key)


def variable(key: Key) -> str:
    """The name of a setting in the environment, in .env and as a secret file."""
    return DELIMITER.join(key).upper()


def unknown(where: str, key: Key, known: Collection[Key], spell: Callable[[Key], str] = dotted) -> str:
    """There is no such setting: with the one that was probably meant, or else with those that there are."""
    near = nearest(key, known)
    siblings = ", ".join(other[-1] for other in known if other[:-1] == key[:-1])
    if near is not None:
        return f"{where}: no such setting; did you mean {spell(near)}?"
    return f"{where}: no such setting" + (f"; {dotted(key[:-1])} has {siblings}" if key[:-1] and siblings else "")


def nearest(key: Key, known: Collection[Key]) -> Key | None:
    """The setting that was probably meant: of that name anywhere, of a longer or like name here, or like as a whole."""
    for other in known:
        if other[-1] == key[-1]:
            return other
    siblings = {other[-1]: other for other in known if other[:-1] == key[:-1]}
    for name, other in siblings.items():
        if name.startswith(f"{key[-1]}_"):
            return other
    wholes = {dotted(other): other for other in known}
    for candidates, text, cutoff in ((siblings, key[-1], 0.6), (wholes, dotted(key), 0.8)):
        for match in get_close_matches(text, candidates, n=1, cutoff=cutoff):
            return candidates[match]
    return None


def describe(error: ValidationError, model: type[BaseModel], origins: Mapping[Key, Origin]) -> list[str]:
    """One line for each thing that pydantic found wrong."""
    known = leaves(model)
    lines = (_describe(detail, known, origins) for detail in error.errors(include_url=False))
    return list(dict.fromkeys(lines))


def _describe(detail: ErrorDetails, known: Mapping[Key, FieldInfo], origins: Mapping[Key, Origin]) -> str:
    names = tuple(str(part) for part in detail["loc"])
    key = next((names[:length] for length in range(len(names), 0, -1) if names[:length] in known), ())
    if detail["type"] == "missing" and key == names:
        return _missing(key)
    if detail["type"] == "extra_forbidden":
        return unknown(dotted(names), names, sections(known) if isinstance(detail["input"], dict) else known)
    rest = detail["loc"][len(key) :]
    where = origins[key].where if key in origins else dotted(key or names)
    items = "".join(f"item {part + 1} " for part in rest if isinstance(part, int))
    is_secret = key in known and _is_secret(key, known[key])
    what = _complaint(detail, is_secret=is_secret)
    is_plain = key in known and not is_secret and all(isinstance(part, int) for part in rest)
    if is_plain and detail["type"] not in PROJECT_ERRORS:
        what += _shown(detail["input"])
    return f"{where}: {items}{what}" if where else what


def _missing(key: Key) -> str:
    section = f" under [{dotted(key[:-1])}]" if key[:-1] else ""
    return f"{dotted(key)} is not set: give {key[-1]}{section} in settings.toml, or set {variable(key)}"


def _complaint(detail: ErrorDetails, *, is_secret: bool) -> str:
    if detail["type"] in ("bool_parsing", "bool_type"):
        return "must be true or false"
    if detail["type"] in PROJECT_ERRORS:  # it may quote the value
        return "is not valid" if is_secret else " ".join(str(detail["ctx"]["error"]).split())
    text = detail["msg"].replace("Input should", "must").replace("String should", "must")
    return " ".join((text[:1].lower() + text[1:]).split())


def _is_secret(key: Key, info: FieldInfo) -> bool:
    return _holds_secret(info.annotation) or any(word in key[-1].lower() for word in SECRET_WORDS)


def _holds_secret(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if isclass(kind) and issubclass(kind, SecretStr | SecretBytes | Secret):
        return True
    return any(_holds_secret(one) for one in get_args(annotation))


def _shown(value: Any) -> str:
    """The value, if it is a plain one and no URL, which may hold a password."""
    if not isinstance(value, str | int | float) or "://" in str(value):
        return ""
    text = repr(value)
    return f", and is {text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + '…'}"
