"""Writes the tables of settings.md from the classes that read the settings: `make docs-settings`.

The result is checked in, so that it can be read on GitHub and a change of it is seen in a review. A test compares it
with the classes, so that it cannot go stale.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

PAGE = Path(__file__).with_name("settings.md")
sys.path.insert(0, str(PAGE.parents[1] / "{{cookiecutter.project_slug}}" / "src"))

from mailroom.settings import Settings  # noqa: E402
from mailroom.settings_problems import Key, dotted, leaves, named_section_of, section_of, variable  # noqa: E402

START = "<!-- From here on written by `make docs-settings`. -->"
COLUMNS = ("setting", "variable", "value", "default", "what it does")
TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text", "null": "unset"}


class UndescribedError(Exception):
    """A setting or a section says nothing about itself."""


def reference(model: type[BaseModel]) -> str:
    """A part for each section of the model, one line for each setting. Raises UndescribedError."""
    inner = {name: section for name, info in model.model_fields.items() if (section := section_of(info))}
    parts = [_part(f"[{name}]", _said(section.__doc__, name), section, (name,)) for name, section in inner.items()]
    parts += [
        f"## [{name}.<name>]\n\n{_said(info.description, name)} `<name>` is a word of `a-z`, `0-9` and `_`. Its "
        f"settings are those of [database]; `url` is the variable `{variable((name, '<name>', 'url'))}`."
        for name, info in model.model_fields.items()
        if named_section_of(info)
    ]
    outside = "These stand in no section: in settings.toml, above the first one."
    return "\n\n".join([*parts, _part("Without a section", outside, model, ())]) + "\n"


def written(page: str) -> str:
    """The page with what the classes say now, below what was written by hand."""
    by_hand, _, _ = page.partition(START)
    return f"{by_hand}{START}\n\n{reference(Settings)}"


def _part(title: str, what: str, model: type[BaseModel], prefix: Key) -> str:
    own = {
        key: info
        for key, info in leaves(model, prefix).items()
        if len(key) == len(prefix) + 1 and not named_section_of(info)
    }
    return "\n".join([f"## {title}", "", what, "", _row(COLUMNS), _row(["---"] * len(COLUMNS)), *_rows(own)])


def _rows(settings: Mapping[Key, FieldInfo]) -> Iterator[str]:
    for key, info in settings.items():
        default = "none: must be given" if info.is_required() else _shown(info.default)
        said = _said(info.description, dotted(key))
        yield _row([f"`{key[-1]}`", f"`{variable(key)}`", _values(info), default, said])


def _row(cells: Any) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _said(description: str | None, name: str) -> str:
    if not description:
        raise UndescribedError(f"{name} has no description; write a docstring below it")
    return " ".join(description.split())


def _values(info: FieldInfo) -> str:
    whole: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
    return _in_words(TypeAdapter(whole).json_schema())


def _in_words(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows. The bounds of pydantic's own types stand in it under two names each."""
    if "anyOf" in schema:
        return ", or ".join(_in_words(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list; each: {_in_words(schema['items'])}"
    said = ["secret text" if schema.get("writeOnly") else TYPES[schema["type"]]]
    least = [schema[name] for name in ("minimum", "ge") if name in schema]
    above = [schema[name] for name in ("exclusiveMinimum", "gt") if name in schema]
    most = [schema[name] for name in ("maximum", "le") if name in schema]
    if above:
        said.append(f"above {max(above):,}")
    elif least:
        said.append(f"at least {max(least):,}")
    if most:
        said.append(f"at most {min(most):,}")
    if "maxLength" in schema:
        said.append(f"at most {schema['maxLength']} characters")
    if "pattern" in schema:
        said.append(f"like `{schema['pattern']}`")
    return ", ".join(said)


def _shown(default: Any) -> str:
    if default is None:
        return "unset"
    return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
