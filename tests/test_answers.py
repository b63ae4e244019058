"""Both engines ask the same questions, and accept and refuse the same answers, before anything is written."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import copier
import pytest
import yaml
from checkout import ROOT, ProjectOn
from cookiecutter.generate import generate_context
from cookiecutter.prompt import prompt_for_config
from examples import DATABASES, TRANSPORTS
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packaging.requirements import Requirement
from pytest_cookies.plugin import Cookies

COOKIECUTTER: dict[str, Any] = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
COPIER: dict[str, Any] = yaml.safe_load((ROOT / "copier.yml").read_text(encoding="utf-8"))
ASKED = {name: question for name, question in COPIER.items() if name[0] != "_" and question.get("when") is not False}
RULES: Any = (
    Environment(loader=FileSystemLoader(ROOT), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    .get_template("validators.jinja")
    .module
)

GOOD = [
    ("project_name", 'Bob\'s "best" \\ shop\\'),
    ("project_name", "Größe & Café #1 <b> 商店 🚚"),
    ("project_slug", "order-desk_2"),
    ("project_slug", "a"),
    ("project_slug", "a" * 40),
    ("package_name", "order_desk_2"),
    ("package_name", "o" * 40),
    ("description", '"""'),
    ("description", "ends in a backslash \\"),
    ("description", "${HOME} %(here)s $(id) `id` } }} %} #} - [x]: 'y' " + "long " * 500),
    ("author_name", 'Zoë O\'Hara, "Z" \\'),
    ("author_name", ""),
    ("author_email", ""),
    ("author_email", "first.last+shop@mail.example.org"),
]

BAD = [
    ("project_name", "", "must not be empty"),
    ("project_name", "   ", "must not be empty"),
    ("project_name", "two\nlines", "one line without control characters"),
    ("project_name", "\x1b[31mred", "one line without control characters"),
    ("description", "a\x00b", "one line without control characters"),
    ("description", "one\u2028two", "one line without control characters"),
    ("author_name", "\x85", "one line without control characters"),
    ("project_slug", "", "must not be empty"),
    ("project_slug", "Shop", "lower-case letters"),
    ("project_slug", "my shop", "lower-case letters"),
    ("project_slug", "café", "lower-case letters"),
    ("project_slug", "shop.", "lower-case letters"),
    ("project_slug", "a:b", "lower-case letters"),
    ("project_slug", "a/b", "lower-case letters"),
    ("project_slug", "../shop", "lower-case letters"),
    ("project_slug", "..", "lower-case letters"),
    ("project_slug", "a\\b", "lower-case letters"),
    ("project_slug", "-shop", "must begin with a letter"),
    ("project_slug", "2shop", "must begin with a letter"),
    ("project_slug", "shop-", "must end with a letter or a digit"),
    ("project_slug", "shop_", "must end with a letter or a digit"),
    ("project_slug", "a" * 41, "longer than 40"),
    ("project_slug", "con", "Windows"),
    ("project_slug", "lpt1", "Windows"),
    ("project_slug", "pydantic-settings", "installs something of that name"),
    ("project_slug", "pydantic_settings", "installs something of that name"),
    ("project_slug", "pytest", "installs something of that name"),
    ("package_name", "", "must not be empty"),
    ("package_name", "order-desk", "must begin with a letter"),
    ("package_name", "2shop", "must begin with a letter"),
    ("package_name", "_shop", "must begin with a letter"),
    ("package_name", "Shop", "must begin with a letter"),
    ("package_name", "größe", "must begin with a letter"),
    ("package_name", "shop.desk", "must begin with a letter"),
    ("package_name", "o" * 41, "longer than 40"),
    ("package_name", "class", "keyword"),
    ("package_name", "match", "keyword"),
    ("package_name", "email", "standard library"),
    ("package_name", "mailroom", "has something of that name"),
    ("package_name", "tests", "has something of that name"),
    ("package_name", "migrations", "has something of that name"),
    ("package_name", "sqlalchemy", "installed package"),
    ("author_email", "nobody", "must look like"),
    ("author_email", "two@at@example.com", "must look like"),
    ("author_email", "a b@example.com", "must look like"),
    ("author_email", "a@localhost", "must look like"),
    ("author_email", ".a@example.com", "must look like"),
    ("author_email", 'a"@example.com', "must look like"),
    ("author_email", "é@example.com", "must look like"),
]

# Under --no-input, cookiecutter itself renders what stands in an answer, before any rule is asked.
BAD_FOR_COPIER = [(name, f"x {token}", "must not hold") for name in ("project_name", "description", "author_name")
                  for token in ("{{", "{%", "{#")]  # fmt: skip


def test_both_ask_the_same_questions_in_the_same_order() -> None:
    assert [name for name in COOKIECUTTER if not name.startswith("_")] == list(ASKED)


def test_the_last_question_is_the_hidden_one_that_names_the_answers_as_cookiecutter_does() -> None:
    assert list(COPIER)[-1] == "cookiecutter"
    assert COPIER["cookiecutter"]["when"] is False


@pytest.mark.parametrize("name", ASKED)
def test_both_ask_in_the_same_words_and_offer_the_same_choices(name: str) -> None:
    prompt, question = COOKIECUTTER["__prompts__"][name], ASKED[name]
    if "choices" not in question:
        assert prompt == question["help"]
        return
    assert prompt == {"__prompt__": question["help"], **{v: label for label, v in question["choices"].items()}}
    assert COOKIECUTTER[name] == list(question["choices"].values())
    assert question["default"] == COOKIECUTTER[name][0]


@pytest.mark.parametrize("name", ["project_name", "description", "author_name", "author_email"])
def test_both_offer_the_same_plain_defaults(name: str) -> None:
    assert COOKIECUTTER[name] == ASKED[name]["default"]


KNOWN_NAMES = [*RULES.installed_names, *RULES.standard_library, "Con", "Émail", "3 d", "Größe"]


@given(st.text(max_size=60) | st.sampled_from(KNOWN_NAMES))
def test_both_derive_the_same_names_and_never_one_that_is_refused(project_name: str) -> None:
    context = generate_context(str(ROOT / "cookiecutter.json"))
    context["cookiecutter"]["project_name"] = "{{ cookiecutter._given }}"
    context["cookiecutter"] = {"_given": project_name, **context["cookiecutter"]}
    derived = prompt_for_config(context, no_input=True)
    slug = RULES.derive_project_slug(project_name).strip()
    assert derived["project_slug"] == slug
    assert derived["package_name"] == RULES.derive_package_name(slug).strip()
    assert not RULES.refuse_project_slug(slug).strip()
    assert not RULES.refuse_package_name(derived["package_name"]).strip()


@pytest.mark.parametrize(
    ("name", "slug"), [("Café Größe", "cafe-grosse"), ("Bob's Shop", "bobs-shop"), ("3 d", "d"), ("商店", "service")]
)
def test_a_slug_reads_like_the_name(name: str, slug: str) -> None:
    assert RULES.derive_project_slug(name).strip() == slug


def test_the_default_project_is_called_shop() -> None:
    derived = prompt_for_config(generate_context(str(ROOT / "cookiecutter.json")), no_input=True)
    assert (derived["project_slug"], derived["package_name"]) == ("shop", "shop")


def test_cookiecutter_avoids_the_names_that_the_validators_refuse() -> None:
    assert COOKIECUTTER["_taken_slugs"] == RULES.windows_devices + RULES.installed_names
    packages = RULES.keywords + RULES.standard_library + RULES.own_names + RULES.installed_packages
    assert COOKIECUTTER["_taken_packages"] == packages


def test_every_module_of_the_standard_library_is_refused_as_a_package() -> None:
    modules = {name for name in sys.stdlib_module_names if name[0] != "_" and name == name.lower()}
    assert modules <= {*RULES.standard_library}


@pytest.mark.parametrize(
    ("database", "transport"),
    [*((database, "in_process") for database in DATABASES), *(("sqlite", transport) for transport in TRANSPORTS[1:])],
)
def test_what_a_project_installs_is_refused_as_a_name(shop_on: ProjectOn, database: str, transport: str) -> None:
    project = tomllib.loads((shop_on(database, transport) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = set(closure([*project["dependencies"], *project["optional-dependencies"]["dev"]]))
    commands = {
        point.name
        for name in installed
        for point in metadata.distribution(name).entry_points
        if point.group == "console_scripts"
    }
    names = {name.lower().replace("_", "-").replace(".", "-") for name in installed | commands}
    assert names <= {*RULES.installed_names}
    packages = {
        package
        for package, owners in metadata.packages_distributions().items()
        if package[0] in RULES.letters
        and installed & {owner.lower().replace("_", "-") for owner in owners}
        and find_spec(package)  # a distribution may name one that it does not hold
    }
    assert packages <= {*RULES.installed_packages}


def closure(requirements: list[str]) -> Iterator[str]:
    """The distributions that these requirements install here, whatever they require included."""
    wanted, seen = [Requirement(one) for one in requirements], set[str]()
    while wanted:
        requirement = wanted.pop()
        name = requirement.name.lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        yield name
        for line in metadata.distribution(name).requires or []:
            needed = Requirement(line)
            extras = ("", *requirement.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(needed)


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_a_good_answer_is_accepted_by_the_rules(name: str, value: str) -> None:
    assert not refusal(name, value)


def test_the_page_about_the_questions_shows_what_is_really_said() -> None:
    page = (ROOT / "docs" / "prompts.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\|.*\| `(\w+ (?:must|may) .*)` \|$", page, re.MULTILINE)
    said = {f"{name} {refusal(name, value)}" for name, value, _ in BAD}
    assert len(shown) > 10
    assert set(shown) <= said
    assert [line.removeprefix("## ") for line in page.splitlines() if line.removeprefix("## ") in ASKED] == list(ASKED)


@pytest.mark.parametrize(("name", "value", "reason"), BAD + BAD_FOR_COPIER)
def test_copier_refuses_a_bad_answer_and_writes_nothing(
    template: Path, tmp_path: Path, name: str, value: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        copier.run_copy(str(template), tmp_path / "project", {name: value}, defaults=True, vcs_ref="HEAD", quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "value", "reason"), [one for one in BAD if "\0" not in one[1]])
def test_cookiecutter_refuses_a_bad_answer_and_writes_nothing(
    cookies: Cookies,
    template: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: str,
    reason: str,
) -> None:
    result = cookies.bake(extra_context={name: value}, template=str(template))
    assert result.exit_code != 0
    said = capfd.readouterr().err
    outside = value in ("..", "") and "already exists" in str(result.exception)  # never got as far as the rules
    guarded = "project_slug must name one folder" in str(result.exception)
    assert outside or guarded or f"{name} " in said
    assert outside or guarded or reason in said
    assert "Traceback" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert [path.name for path in (tmp_path / "cookies").rglob("*")] in ([], ["bake00"])


def test_every_bad_answer_is_named_at_once_under_cookiecutter(
    cookies: Cookies, template: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = {"project_slug": "My Shop", "package_name": "class", "author_email": "nobody"}
    assert cookies.bake(extra_context=answers, template=str(template)).exit_code != 0
    said = capfd.readouterr().err
    assert all(f"  {name} " in said for name in answers)


@pytest.mark.parametrize("name", ["database", "transport"])
def test_what_is_not_offered_cannot_be_chosen(cookies: Cookies, template: Path, tmp_path: Path, name: str) -> None:
    assert isinstance(cookies.bake(extra_context={name: "other"}, template=str(template)).exception, ValueError)
    with pytest.raises(ValueError, match="Invalid choice"):
        copier.run_copy(str(template), tmp_path / "project", {name: "other"}, defaults=True, vcs_ref="HEAD", quiet=True)


def refusal(name: str, value: str) -> str:
    """What the validator of copier.yml says to an answer."""
    environment = Environment(
        loader=FileSystemLoader(ROOT), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(ASKED[name]["validator"]).render({name: value}).strip()
