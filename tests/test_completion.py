"""`shop --install-completion` makes shells complete commands, options and values; the README of a project says so."""

import shutil
from pathlib import Path

import pytest
from checkout import succeed
from walk import BIN, command_folder, shell


@pytest.fixture
def home(own_shop: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has not set up anything yet, with the project's command on the PATH."""
    (tmp_path / "home").mkdir()
    environment = shell(command_folder(tmp_path / "bin"), BIN)
    return {**environment, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(own_shop / "src")}


def test_bash_completes_commands_options_and_values_once_it_is_installed(own_shop: Path, home: dict[str, str]) -> None:
    said = succeed("bash", "-c", "shop --install-completion; true", cwd=own_shop, env=home)
    assert "bash completion installed" in said
    for typed, offered in {
        "outbox re": {"replay"},
        "db up": {"upgrade"},
        "dead-letters dis": {"discard"},
        "topology pr": {"prune"},
        "outbox list --older": {"--older-than"},
        "outbox list --state p": {"pending", "processed"},
    }.items():
        script = (
            f"source ~/.bashrc; COMP_WORDS=(shop {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
            '_shop_completion shop; echo "${COMPREPLY[@]}"'
        )
        assert set(succeed("bash", "-c", script, cwd=own_shop, env=home).split()) == offered


def test_zsh_is_recognised_and_given_its_own_script(own_shop: Path, home: dict[str, str], tmp_path: Path) -> None:
    """A shell is recognised by the name of its process, so bash under that name will do."""
    zsh = shutil.copy(shutil.which("bash") or "bash", tmp_path / "zsh")
    assert "#compdef shop" in succeed(zsh, "-c", "shop --show-completion; true", cwd=own_shop, env=home)
    succeed(zsh, "-c", "shop --install-completion; true", cwd=own_shop, env=home)
    assert "#compdef shop" in (tmp_path / "home" / ".zfunc" / "_shop").read_text()
    assert "compinit" in (tmp_path / "home" / ".zshrc").read_text()
