"""The documentation site: it builds without a warning, and what leads nowhere fails the build."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT, run

# What `make docs` says, with another target.
BUILD = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--nitpicky", "-b", "html")

FAULTS = {
    "a page that is not there": ("See [this](no-such-page.md).", "no-such-page.md"),
    "a heading that is not there": ("See [this](operating.md#no-such-heading).", "no-such-heading"),
    "a heading that is not on this page": ("See [this](#no-such-heading).", "no-such-heading"),
    "a file that is not in the repository": ("See [this](../no-such-file.py).", "no-such-file.py"),
    "a page of the repository that is not there": ("See [this](../NO-SUCH-PAGE.md).", "NO-SUCH-PAGE"),
    "a directive that is not there": ("```{no-such-directive}\n```", "no-such-directive"),
}


def build(checkout: Path, into: Path) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, *BUILD, checkout / "docs", into, cwd=checkout)


@pytest.fixture(scope="module")
def site(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    done = build(template, into)
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""
    return into


@pytest.fixture
def own_checkout(template: Path, tmp_path: Path) -> Path:
    """A copy of the template that a test may break."""
    return Path(shutil.copytree(template, tmp_path / "checkout", ignore=shutil.ignore_patterns(".git")))


def test_the_site_has_every_page_that_the_repository_has(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_a_fence_that_github_draws_is_a_diagram(site: Path) -> None:
    assert (site / "how-delivery-works.html").read_text(encoding="utf-8").count('class="mermaid"') == 4


def test_a_link_to_a_file_is_a_download_unless_the_site_has_a_page_for_it(site: Path) -> None:
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    assert any(path.name == "copier.yml" for path in (site / "_downloads").rglob("*"))
    assert "/copier.yml" in architecture
    contract = (site / "contract.html").read_text(encoding="utf-8")
    assert 'href="#">' in contract.partition("This page shows")[2]
    assert not any(path.name == "CONTRACT.md" for path in (site / "_downloads").rglob("*"))


@pytest.mark.parametrize(("line", "named"), FAULTS.values(), ids=FAULTS)
def test_what_leads_nowhere_fails_the_build(own_checkout: Path, tmp_path: Path, line: str, named: str) -> None:
    page = own_checkout / "docs" / "operating.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    done = build(own_checkout, tmp_path / "site")
    assert done.returncode != 0
    (warning,) = [one for one in done.stdout.splitlines() if "WARNING" in one or "ERROR" in one]
    assert "operating.md" in warning
    assert named in warning


def test_a_page_that_no_list_names_fails_the_build(own_checkout: Path, tmp_path: Path) -> None:
    (own_checkout / "docs" / "forgotten.md").write_text("# Forgotten\n", encoding="utf-8")
    done = build(own_checkout, tmp_path / "site")
    assert done.returncode != 0
    assert "forgotten.md: WARNING: document isn't included in any toctree" in done.stdout


def test_make_builds_it_in_the_same_way() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"SPHINX := $(BIN)/python {' '.join(BUILD[:-2])}\n" in makefile
    assert "$(SPHINX) -b html docs .cache/docs\n" in makefile
