"""Where settings come from, and which source wins: settings.toml, .env, secret files, the environment (contract P2).

Later beats earlier. What each says is noted with its origin; what nobody can have meant is noted as a problem.
"""

import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import isclass
from io import StringIO
from pathlib import Path
from typing import Any, get_args, get_origin

from dotenv.parser import Binding, parse_stream
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from mailroom.errors import ConfigurationError
from mailroom.settings_problems import (
    DELIMITER,
    Key,
    Origin,
    bare,
    dotted,
    is_union,
    leaves,
    named_section_of,
    section_of,
    sections,
    unknown,
    variable,
)

SETTINGS_FILE = Path("settings.toml")
SECRETS_DIR = Path("/run/secrets")


@dataclass(frozen=True)
class Found:
    """What the sources say, not yet validated."""

    values: dict[str, Any] = field(default_factory=dict, repr=False)  # secrets are still bare here
    origins: dict[Key, Origin] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    model: type[BaseModel] | None = None
    """The model with a section for every name that was given in a table of sections; see `with_named_sections`."""

    def put(self, key: Key, value: Any, origin: Origin) -> None:
        """Notes a value; one that was noted before has lost."""
        target = self.values
        for name in key[:-1]:
            target = target.setdefault(name, {})
        target[key[-1]] = value
        self.origins[key] = origin


def given_in_code(model: type[BaseModel], values: dict[str, Any]) -> Found:
    """What was handed to the constructor: nothing else is looked at."""
    model = with_named_sections(model, lambda field: values.get(field) or ())
    found = Found(values, model=model)

    def note(given: Any, section: type[BaseModel], prefix: Key) -> None:
        names = given.keys() if isinstance(given, Mapping) else getattr(given, "model_fields_set", ())
        for name in names:
            key = (*prefix, name)
            inner = section_of(section.model_fields[name]) if name in section.model_fields else None
            if inner is not None:
                note(given[name] if isinstance(given, Mapping) else getattr(given, name), inner, key)
            else:
                found.origins[key] = Origin("code", dotted(key))

    note(values, model, ())
    return found


def read(
    model: type[BaseModel],
    *,
    settings_file: Path | None,
    env: Mapping[str, str],
    dotenv: Path | None,
    secrets_dir: Path | None,
) -> Found:
    """Everything that the sources say. Raises ConfigurationError if a file is missing or cannot be read at all."""
    file = _find_settings_file(settings_file, env)
    document = _toml(file)
    if dotenv is not None and (not dotenv.exists() or dotenv.is_dir()):
        dotenv = None
    secrets = _find_secrets_dir(secrets_dir, env)
    # Only what is named like a setting is opened: other programs keep binary and unreadable files here.
    files = [entry.name for entry in _files(secrets)] if secrets is not None else []
    variables = [*files, *env, *(binding.key or "" for binding in (_bindings(dotenv) if dotenv is not None else ()))]

    model = with_named_sections(model, lambda field: _named(field, document, variables))
    found = Found(model=model)
    _read_toml(found, model, document, file)
    if dotenv is not None:
        _read_dotenv(found, model, dotenv)
    if secrets is not None:
        _read_variables(found, model, files, lambda name: _text(secrets / name), lambda name: f"secret file {name}")
    _read_variables(found, model, env, env.__getitem__, lambda name: f"environment variable {name}")
    return found


def with_named_sections(model: type[BaseModel], named: Callable[[str], Iterable[str]]) -> type[BaseModel]:
    """The model, with each table of sections (`dict[str, Section]`) as a section that has those names.

    So what is inside of it is known, read and complained about like everything else.
    """
    tables: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        section = named_section_of(info)
        if section is not None:
            fields: dict[str, Any] = dict.fromkeys(sorted(named(name)), (section, ...))
            tables[name] = (create_model(name, **fields), ...)
    if not tables:
        return model
    others: dict[str, Any] = {one: (info.annotation, info) for one, info in model.model_fields.items()}
    return create_model(model.__name__, **{**others, **tables})


def _named(table: str, document: Mapping[str, Any], variables: Iterable[str]) -> set[str]:
    """The names of the sections in a table of sections."""
    written = document.get(table)
    parts = [variable.lower().split(DELIMITER) for variable in variables]
    return {
        *(name for name, inner in (written.items() if isinstance(written, dict) else ()) if isinstance(inner, dict)),
        *(part[1] for part in parts if part[0] == table and len(part) > 2),
    }


def complete(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with a place for every section that must say something: so fields are missed, not sections.

    A section that is given in part keeps what else the project's own default for it says.
    """
    whole = dict(values)
    for name, info in model.model_fields.items():
        section = section_of(info)
        given = whole.get(name, {} if info.is_required() else None)
        if section is not None and isinstance(given, Mapping):
            default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
            kept = {one: getattr(default, one) for one in getattr(default, "model_fields_set", ())}
            whole[name] = complete(section, {**kept, **given})
    return whole


def _find_settings_file(given: Path | None, env: Mapping[str, str]) -> Path:
    named = env.get("SETTINGS_FILE", "").strip()
    path = given or (Path(named) if named else SETTINGS_FILE)
    if path.is_file():
        return path
    if given is None and named:
        raise ConfigurationError(f"SETTINGS_FILE names {path}, and there is no such file; correct it, or unset it")
    raise ConfigurationError(
        f"there is no {path.name} in {path.absolute().parent}, and without it this would silently be another service; "
        "run in the folder that holds it, or set SETTINGS_FILE to its path"
    )


def _find_secrets_dir(given: Path | None, env: Mapping[str, str]) -> Path | None:
    named = env.get("SECRETS_DIR", "").strip()
    path = given or (Path(named) if named else None)
    if path is None:
        return SECRETS_DIR if SECRETS_DIR.is_dir() else None
    if not path.is_dir():
        raise ConfigurationError(f"secrets are expected in {path}, and there is no such folder; correct SECRETS_DIR")
    return path


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except ValueError as error:
        raise ConfigurationError(f"{_relative(path)} is not TOML: {error}") from None


def _read_toml(found: Found, model: type[BaseModel], document: Mapping[str, Any], path: Path) -> None:
    file = _relative(path)
    known = leaves(model)

    def walk(table: Mapping[str, Any], section: type[BaseModel], prefix: Key) -> None:
        for name, value in table.items():
            key = (*prefix, name)
            where = f"{file}, {dotted(key)}"
            info = section.model_fields.get(name)
            inner = section_of(info) if info else None
            if info is None:
                found.problems.append(unknown(where, key, sections(known) if isinstance(value, dict) else known))
            elif inner is None:
                found.put(key, value, Origin(file, where))
            elif isinstance(value, dict):
                walk(value, inner, key)
            else:
                found.problems.append(f"{where}: must be a section, written as [{dotted(key)}]")

    walk(document, model, ())


def _read_dotenv(found: Found, model: type[BaseModel], path: Path) -> None:
    """Nothing is expanded in a value: what stands there counts, and a password may hold `$`."""
    file = _relative(path)
    marks = [variable(key[:1]) + (DELIMITER if key[1:] else "") for key in leaves(model)]
    texts: dict[str, str] = {}
    for binding in _bindings(path):
        if binding.key is not None:
            texts[binding.key] = binding.value or ""
        elif binding.error and any(mark in binding.original.string.upper() for mark in marks):
            line = binding.original.line + _blank_lines(binding.original.string)
            found.problems.append(f"{file}, line {line}: must be NAME=value")
    _read_variables(found, model, texts, texts.__getitem__, lambda name: f"{file}, {name}", source=file)


def _bindings(path: Path) -> Iterable[Binding]:
    return parse_stream(StringIO(_text(path)))


def _read_variables(
    found: Found,
    model: type[BaseModel],
    names: Iterable[str],
    text_of: Callable[[str], str],
    where_of: Callable[[str], str],
    source: str | None = None,
) -> None:
    """Names joined by two underscores. A blank one counts as absent; of two spellings, the upper case one wins."""
    known = leaves(model)
    by_variable = {variable(key): key for key in known}
    prefixes = {variable((name,)) for name, info in model.model_fields.items() if section_of(info)}
    for name in sorted(names, reverse=True):
        key = by_variable.get(name.upper())
        prefix, delimiter, _ = name.upper().partition(DELIMITER)
        if key is None and not (delimiter and prefix in prefixes):
            continue
        where = where_of(name)
        text = text_of(name).strip()
        if not text:
            continue
        if key is None:
            found.problems.append(unknown(where, tuple(name.lower().split(DELIMITER)), known, variable))
            continue
        try:
            found.put(key, _parse(known[key], text), Origin(source or where, where))
        except ValueError:
            found.problems.append(f"{where}: begins like JSON, and is not")


def _parse(info: FieldInfo, text: str) -> Any:
    """Lists and tables are JSON; a list may also be separated by commas. The rest is left to pydantic."""
    annotation = bare(info.annotation)
    members = [bare(one) for one in get_args(annotation)] if is_union(annotation) else [annotation]
    kinds = [get_origin(one) or one for one in members]
    structured = [kind for kind in kinds if isclass(kind) and _is_structured(kind)]
    if structured and text.startswith(("[", "{")):
        return json.loads(text)
    if len(kinds) == len(structured) == 1 and not issubclass(structured[0], Mapping | BaseModel):
        return [item.strip() for item in text.split(",")]
    return text


def _is_structured(kind: type) -> bool:
    return issubclass(kind, Collection | BaseModel) and not issubclass(kind, str | bytes)


def _files(directory: Path) -> list[Path]:
    try:
        return [entry for entry in directory.iterdir() if entry.is_file()]
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be read: {error.strerror}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} cannot be read: it is not UTF-8") from None


def _blank_lines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def _relative(path: Path) -> str:
    """The path as seen from the working directory, if it is below."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else path)
