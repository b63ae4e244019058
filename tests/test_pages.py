"""Every page's code blocks do what the page says (FAULTS F23), and the walk that tries them finds what is wrong."""

from pathlib import Path

import pytest
from checkout import ROOT
from pages import PageError, blocks, commands, steps
from walk import BIN, Walk, command_folder, shell, shows

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
FROM_NOTHING = {"getting-started.md"}
"""These make their project themselves, in an empty folder."""
WITH_PROCESSES = {"two-services.md"}
"""What these start goes on while they are read: tests/test_two_services.py."""


@pytest.fixture
def walk(own_shop: Path, engines_home: dict[str, str], tmp_path: Path) -> Walk:
    """A reader in the folder of a default project."""
    return Walk(own_shop, {**engines_home, **shell(command_folder(tmp_path / "bin"), BIN)})


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FROM_NOTHING | WITH_PROCESSES])
def test_every_block_does_what_the_page_says(page: str, walk: Walk) -> None:
    walk.take(ROOT / "docs" / page)


@pytest.mark.parametrize("page", sorted(FROM_NOTHING))
def test_every_block_does_what_the_page_says_from_nothing_on(
    page: str, template: Path, engines_home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    Walk(
        tmp_path / "work",
        {
            **engines_home,
            **shell(command_folder(tmp_path / "bin"), BIN),
            # Where the page names the template's home, git takes the working tree under test.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{template}.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://github.com/org/cookiecutter-mailroom.git",
        },
    ).take(ROOT / "docs" / page)


class TestReading:
    """What a page's text comes to."""

    def test_a_block_knows_its_line_its_heading_and_its_markers(self) -> None:
        (block,) = blocks(
            "# A page\n\n<!-- exit: 3 -->\n<!-- not run: it is late -->\n```console\nfalse\n```\n", "a.md"
        )
        assert (block.line, block.heading, block.exit_code, block.not_run) == (6, "A page", 3, "it is late")

    def test_a_block_in_a_list_loses_its_indent_and_a_longer_fence_may_hold_a_shorter_one(self) -> None:
        assert [block.text for block in blocks("- one\n\n  ```text\n  a\n    b\n  ```\n", "a.md")] == ["a\n  b\n"]
        assert [block.text for block in blocks("````text\n```console\n```\n````\n", "a.md")] == ["```console\n```\n"]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("<!-- flie: a.py -->\n```python\n```\n", "a.md:1: the marker 'flie: a.py' is not"),
            ("<!-- skip -->\n```python\n```\n", "a.md:1: the marker 'skip' is not"),
            ("<!-- not run: -->\n```python\n```\n", "a.md:1: the marker 'not run:' is not"),
            ("<!-- exit: 1 -->\n<!-- exit: 2 -->\n```console\n```\n", "a.md:2: the marker 'exit: 2' is not"),
            ("<!-- exit: 1 -->\n\n```console\n```\n", "a.md:1: the marker 'exit: 1' does not stand directly before"),
            ("<!-- exit: 1 -->\n", "a.md:1: the marker 'exit: 1' does not stand directly before"),
            ("<!-- exit: 1 -->\n```python\n```\n", "a.md:2: `exit: 1` is a number, and stands before a console block"),
            ("<!-- file: a.py -->\n<!-- exit: one -->\n```console\n```\n", "a.md:3: `exit: one`"),
            ("```pyhton\n```\n", "a.md:1: a block is one of .*, and not 'pyhton'"),
            ("text\n```\n```\n", "a.md:2: a block is one of .*, and not ''"),
            ("```text\n", "a.md:1: the block is never closed"),
        ],
    )
    def test_what_is_not_understood_is_an_error_that_names_page_and_line(self, text: str, said: str) -> None:
        with pytest.raises(PageError, match=said):
            blocks(text, "a.md")

    def test_other_comments_are_left_alone(self) -> None:
        assert blocks("<!-- made from the settings classes -->\n\n# A page\n", "a.md") == []

    def test_a_console_block_is_commands_each_with_its_output(self) -> None:
        (block,) = blocks("```console\n$ one \\\n    --more\nprinted\n$ two\n```\n", "a.md")
        assert [(step.line, step.command, step.shown) for step in steps(block)] == [
            (2, "one --more", ("printed",)),
            (5, "two", ()),
        ]

    def test_without_prompts_each_line_is_a_command(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text("## One\n```console\n# why\na\n```\n## Two\n```console\nb \\\n  c\nd\n```\n")
        assert commands(tmp_path / "a.md") == ["a", "b c", "d"]
        assert commands(tmp_path / "a.md", "Two") == ["b c", "d"]

    def test_output_without_a_command_is_an_error(self) -> None:
        (block,) = blocks("```console\nprinted\n$ one\n```\n", "a.md")
        with pytest.raises(PageError, match=r"a.md:2: output before the first command"):
            steps(block)


@pytest.mark.parametrize(
    ("shown", "agrees"),
    [
        (["a b", "c", "d"], True),
        (["a", "b c d"], True),
        (["a b", "...", "d"], True),
        (["...", "c", "..."], True),
        (["a b", "...", "c", "d"], True),
        (["a b", "c"], False),
        (["b", "c", "d"], False),
        (["...", "d", "c", "..."], False),
        (["a b", "...", "c"], False),
        (["a b", "c", "...", "c", "d"], False),
        (["...", "a b c d e"], False),
    ],
)
def test_all_that_is_printed_has_to_be_shown_or_left_out_by_dots(shown: list[str], agrees: bool) -> None:
    assert shows("a b\nc\nd\n", shown) is agrees


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("order d786931e-1c6a-4a5d-947b-f19935c380e7", "order 3959b071-3622-4fdf-baab-1aec5464c2e1"),
        ("at 2026-12-02T08:44:42Z", "at 2025-01-01T00:00:00Z"),
        ("at 2026-12-02 08:44:42.123456+00:00", "at 2025-01-01 00:00:00.5+00:00"),
        ("agree within 0.1 seconds", "agree within 0.0 seconds"),
        ("2 passed in 61.20s (0:01:01)", "2 passed"),
        ("at 9905b6f70559", "at 1e46588daa14"),
    ],
)
def test_what_differs_from_run_to_run_is_masked(printed: str, shown: str) -> None:
    assert shows(printed, [shown])
    assert not shows(printed, ["at"])


class TestWalking:
    """What comes of a page that is right, and of one that is not."""

    @pytest.fixture
    def walk(self, tmp_path: Path) -> Walk:
        (tmp_path / "project").mkdir()
        return Walk(tmp_path / "project", shell(BIN))

    @pytest.fixture
    def page(self, tmp_path: Path) -> Path:
        return tmp_path / "page.md"

    def test_files_diffs_scripts_and_commands_build_on_each_other(self, walk: Walk, page: Path) -> None:
        page.write_text(
            "<!-- file: src/greeting.py -->\n```python\nWORD = 'hello'\n```\n"
            "```python\nimport greeting\nassert greeting.WORD == 'hello'\n```\n"
            "```diff\n--- a/src/greeting.py\n+++ b/src/greeting.py\n@@ -1 +1 @@\n-WORD = 'hello'\n+WORD = 'hi'\n```\n"
            "```console\n$ cd src\n$ cat greeting.py\nWORD = 'hi'\n```\n"
        )
        walk.take(page)
        assert walk.folder.name == "src"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("```console\n$ echo one\ntwo\n```\n", "page.md:2: echo one\ndoes not print .*\n- two\n\\+ one"),
            ("```console\n$ echo one\n...\ntwo\n```\n", "page.md:2: echo one\ndoes not print"),
            ("```console\n$ echo no; exit 4\n```\n", "page.md:2: echo no; exit 4\nexpected exit code 0, got 4:\nno"),
            ("<!-- exit: 1 -->\n```console\n$ true\n```\n", "page.md:3: true\nexpected exit code 1, got 0"),
            ("<!-- exit: 1 -->\n```console\n$ false\n$ false\n```\n", "page.md:3: false\nexpected exit code 0, got 1"),
            ("```console\n# nothing\n```\n", "page.md:2: a console block without a command"),
            ("```console\n$ cd away\n```\n", "page.md:2: `cd away` leads nowhere"),
            (
                "```python\nassert 1 == 2\n```\n",
                "page.md:2: the script\nexpected exit code 0, got 1:\n.*AssertionError",
            ),
            (
                "```diff\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n```\n",
                "page.md:2: git apply\nexpected .*f: No such file",
            ),
            ("```diff\nno diff\n```\n", "page.md:2: git apply\nexpected exit code 0"),
            ("<!-- file: ../f -->\n```text\n```\n", "page.md:3: ../f is not in the project"),
            ("```toml\na = \n```\n", "page.md:2: this is no toml"),
            ("```json\n{a}\n```\n", "page.md:2: this is no json"),
            ("```ini\nno\n```\n", "page.md:2: this is no ini"),
            ("```yaml\na: [\n```\n", "page.md:2: this is no yaml"),
            ("<!-- file: a.toml -->\n```toml\na = \n```\n", "page.md:3: this is no toml"),
        ],
    )
    def test_a_page_that_is_wrong_fails_with_the_place_and_the_reason(
        self, walk: Walk, page: Path, text: str, said: str
    ) -> None:
        page.write_text(text)
        with pytest.raises(PageError, match=f"(?s){said}"):
            walk.take(page)

    def test_a_diff_whose_context_is_not_there_fails(self, walk: Walk, page: Path) -> None:
        (walk.folder / "f").write_text("other\n")
        page.write_text("```diff\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n```\n")
        with pytest.raises(PageError, match="patch does not apply"):
            walk.take(page)
        assert (walk.folder / "f").read_text() == "other\n"

    def test_what_is_not_run_or_only_text_is_passed_by(self, walk: Walk, page: Path) -> None:
        page.write_text("<!-- not run: why -->\n```console\n$ false\n```\n```text\nfalse\n```\n```ini\nA=1\n```\n")
        walk.take(page)

    def test_uv_runs_what_is_there_and_refuses_the_rest(self, tmp_path: Path, page: Path) -> None:
        walk = Walk(tmp_path, shell(command_folder(tmp_path / "bin")))
        page.write_text("```console\n$ uv run echo hello\nhello\n```\n")
        walk.take(page)
        page.write_text("```console\n$ uv sync\n```\n")
        with pytest.raises(PageError, match="only uv run is there"):
            walk.take(page)
