"""cookiecutter and copier make the same project of the same answers, byte for byte, and neither needs trust."""

import json
import tomllib
from pathlib import Path

import copier
import pytest
import yaml
from checkout import ROOT, Render, tree
from cookiecutter.main import cookiecutter
from examples import COMBINATIONS, DATABASES, EVERY_COMBINATION, TRANSPORTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

free_text = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufffe\uffff")
                    | st.sampled_from("\"'\\#&{}%`$ é"), max_size=40) \
    .filter(lambda text: not any(token in text for token in ("{{", "{%", "{#")))  # fmt: skip
slugs = st.from_regex(r"[a-z]([a-z0-9_-]{0,38}[a-z0-9])?", fullmatch=True)
packages = st.from_regex(r"[a-z][a-z0-9_]{0,39}", fullmatch=True)


@pytest.mark.parametrize("combination", [name for name in COMBINATIONS if name not in EVERY_COMBINATION])
def test_both_engines_make_the_same_project(
    by_cookiecutter: Render, by_copier: Render, tmp_path: Path, combination: str
) -> None:
    """Every database with every transport is compared in tests/test_updated_projects.py."""
    answers = COMBINATIONS[combination]
    (tmp_path / "cookiecutter").mkdir()
    made = by_cookiecutter(tmp_path / "cookiecutter", **answers)
    copied = by_copier(tmp_path / "copier", **{"project_slug": made.name, **answers})
    assert tree(made) == tree(copied)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answers=st.fixed_dictionaries(
        {
            "project_name": free_text.filter(str.strip),
            "project_slug": slugs,
            "package_name": packages,
            "description": free_text,
            "author_name": free_text,
            "database": st.sampled_from(DATABASES),
            "transport": st.sampled_from(TRANSPORTS),
        }
    )
)
def test_any_answers_that_the_rules_accept_come_through_both_engines_unchanged(
    template: Path, tmp_path_factory: pytest.TempPathFactory, answers: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    try:
        copier.run_copy(str(template), folder / "copier", answers, defaults=True, vcs_ref="HEAD", quiet=True)
    except ValueError:
        return  # a reserved name; that both refuse it is tests/test_answers.py's concern
    config = folder / "cookiecutter.yaml"
    config.write_text(json.dumps({"replay_dir": str(folder / "replay")}))
    made = Path(
        cookiecutter(
            str(template),
            no_input=True,
            extra_context=answers,
            output_dir=str(folder / "cookiecutter"),
            config_file=str(config),
        )
    )
    assert tree(made) == tree(folder / "copier")
    recorded = yaml.safe_load((made / ".copier-answers.yml").read_text(encoding="utf-8"))
    assert {name: recorded[name] for name in answers} == answers
    project = tomllib.loads((made / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["description"] == answers["description"]
    name = answers["author_name"].strip()
    assert project["authors"] == [{**({"name": name} if name else {}), "email": "you@example.com"}]
    assert project["name"] == answers["project_slug"]


def test_nothing_needs_trust() -> None:
    """No tasks, no migrations, no Jinja extensions, for either engine."""
    settings = yaml.safe_load((ROOT / "copier.yml").read_text(encoding="utf-8"))
    assert not {"_tasks", "_migrations", "_jinja_extensions"} & settings.keys()
    assert "_extensions" not in json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
