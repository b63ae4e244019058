"""The code blocks of a Markdown page: where they stand, and what the markers before them say.

A marker is an HTML comment on a line directly before the fence:

    <!-- file: src/shop/parcels.py -->    the block is the whole content of that file
    <!-- exit: 1 -->                      the last command of the block exits with that code
    <!-- not run: why -->                 the block is left alone
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = {"console", "diff", "python", "toml", "json", "ini", "yaml", "text", "mermaid"}
LEFT_OUT = "..."

FENCE = re.compile(r"^ *(?P<ticks>`{3,})(?P<language>[^\s`]*)[^`]*$")
HEADING = re.compile(r"^#+ (?P<title>.*)$")
COMMENT = re.compile(r"^ *<!-- *(?P<text>.*?) *-->$")
MARKER = re.compile(r"(?P<name>file|exit|not run): (?P<value>\S.*)")


class PageError(AssertionError):
    """What a page says is not so, or cannot be understood; the message names page and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. `line` is that of its first line of text, from 1."""

    page: str
    line: int
    heading: str
    language: str
    text: str
    file: str | None = None
    exit_code: int = 0
    not_run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a console block, and the output that is shown below it."""

    line: int
    command: str
    shown: tuple[str, ...] = ()


def blocks(text: str, page: str) -> list[Block]:
    """Every block, in order. Raises PageError for a marker, a language or a fence that is not understood."""
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    heading = ""
    comments: list[tuple[int, str]] = []
    for number, line in lines:
        if fence := FENCE.match(line):
            found.append(_block(page, number, heading, fence, _inside(lines, fence, page, number), comments))
            comments = []
        elif comment := COMMENT.match(line):
            comments.append((number, comment["text"]))
        else:
            _refuse_stray(comments, page)
            comments = []
            if title := HEADING.match(line):
                heading = title["title"]
    _refuse_stray(comments, page)
    return found


def steps(block: Block) -> list[Step]:
    """The commands of a console block. If no line begins with `$ `, each line is one, and no output is shown.

    A command that ends with a backslash goes on in the next line; without prompts, lines that begin with # are left
    out.
    """
    lines = list(enumerate(block.text.splitlines(), start=block.line))
    prompted = any(line.startswith("$ ") for _, line in lines)
    found: list[Step] = []
    going_on = False
    for number, line in lines:
        if going_on:
            last = found.pop()
            found.append(Step(line=last.line, command=f"{last.command}{line.strip()}"))
        elif line.startswith("$ ") or (not prompted and line.strip() and not line.startswith("#")):
            found.append(Step(line=number, command=line.removeprefix("$ ").strip()))
        elif prompted and found:
            last = found.pop()
            found.append(Step(line=last.line, command=last.command, shown=(*last.shown, line)))
        elif prompted:
            raise PageError(f"{block.page}:{number}: output before the first command of the block")
        going_on = found != [] and not found[-1].shown and found[-1].command.endswith("\\")
        if going_on:
            last = found.pop()
            found.append(Step(line=last.line, command=last.command.removesuffix("\\")))
    return found


def commands(page: Path, section: str | None = None) -> list[str]:
    """Every command of the page's console blocks, in order; `section` is the heading to look under."""
    found = blocks(page.read_text(encoding="utf-8"), page.name)
    if section is not None:
        found = [block for block in found if block.heading == section]
    return [step.command for block in found if block.language == "console" for step in steps(block)]


def _refuse_stray(comments: list[tuple[int, str]], page: str) -> None:
    for at, comment in comments:
        if MARKER.fullmatch(comment):
            raise PageError(f"{page}:{at}: the marker {comment!r} does not stand directly before a block")


def _inside(lines: Iterator[tuple[int, str]], fence: re.Match[str], page: str, start: int) -> str:
    inside: list[str] = []
    for _, line in lines:
        if re.fullmatch(rf" *`{{{len(fence['ticks'])},}} *", line):
            return textwrap.dedent("".join(f"{one}\n" for one in inside))
        inside.append(line)
    raise PageError(f"{page}:{start}: the block is never closed")


def _block(
    page: str, number: int, heading: str, fence: re.Match[str], text: str, comments: list[tuple[int, str]]
) -> Block:
    language = fence["language"]
    is_directive = language.startswith("{")  # Sphinx's own
    if language not in LANGUAGES and not is_directive:
        raise PageError(f"{page}:{number}: a block is one of {', '.join(sorted(LANGUAGES))}, and not {language!r}")
    said: dict[str, str] = {}
    for at, comment in comments:
        marker = MARKER.fullmatch(comment)
        if marker is None or marker["name"] in said:
            raise PageError(f"{page}:{at}: the marker {comment!r} is not `file: …`, `exit: …` or `not run: …`, once")
        said[marker["name"]] = marker["value"]
    if "exit" in said and not (language == "console" and said["exit"].isdecimal()):
        raise PageError(f"{page}:{number}: `exit: {said['exit']}` is a number, and stands before a console block")
    return Block(
        page=page,
        line=number + 1,
        heading=heading,
        language=language,
        text=text,
        file=said.get("file"),
        exit_code=int(said.get("exit", 0)),
        not_run="for Sphinx" if is_directive else said.get("not run"),
    )
