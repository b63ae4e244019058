"""The rendered Dockerfile, step by step and without an engine: what it builds, and how that starts, answers and stops.

That it passes its linter is in test_rendered_project.py.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

import pytest
from checkout import Render, succeed
from dockerfile import Image, steps
from examples import ODD

# An old version that the project allows, so that it shows who decided: the lock file, or the day of the build.
LOCKED = ("alembic", "1.18.0")
SECRET = "hunter2"
STOPS_WITHIN_SECONDS = 30

Build = Callable[[Path], Image]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return lambda project: Image(project, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def image(shop: Path, build: Build, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Of a project in which somebody has worked."""
    project = Path(shutil.copytree(shop, tmp_path_factory.mktemp("project") / "shop"))
    lock(project)
    (project / ".env").write_text(f"PASSWORD={SECRET}\n")
    (project / "shop.db").write_text(SECRET)
    (project / "src" / "shop" / "__pycache__").mkdir()
    (project / "src" / "shop" / "__pycache__" / "app.pyc").write_text(SECRET)
    (project / "settings.toml").chmod(0o600)
    return build(project)


def lock(project: Path) -> None:
    name, version = LOCKED
    uv = Path(sys.executable).with_name("uv")
    succeed(uv, "lock", "--quiet", "--upgrade-package", f"{name}=={version}", cwd=project, env={"UV_PYTHON": ""})


def installed(image: Image) -> dict[str, str]:
    """The distributions in the environment of the image, with their versions."""
    folders = image.root.glob("app/.venv/lib/*/site-packages/*.dist-info")
    return dict(folder.name.removesuffix(".dist-info").split("-") for folder in folders)


def own_variables(image: Image, folder: Path) -> dict[str, str]:
    """The environment of a container on a volume and a port of its own, and nothing of this machine's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {
        **image.env,
        "DATABASE__URL": f"sqlite+aiosqlite:///{folder / 'shop.db'}",
        "HEALTH__HOST": "127.0.0.1",
        "HEALTH__PORT": str(port),
    }


@pytest.fixture
def variables(image: Image, tmp_path: Path) -> dict[str, str]:
    return own_variables(image, tmp_path)


def run(image: Image, variables: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in the container to its end, both streams in `stdout`."""
    return subprocess.run(
        [image.program(command[0]), *command[1:]],
        cwd=image.workdir,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@contextmanager
def started(image: Image, variables: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """What the image runs, once it says that it runs."""
    program, *arguments = image.command
    process = subprocess.Popen(
        [image.program(program), *arguments], cwd=image.workdir, env=variables, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        wait_for("running", process.stderr)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(event: str, log: IO[str]) -> None:
    said = []
    for line in log:
        said.append(line)
        if json.loads(line)["event"] == event:
            return
    pytest.fail(f"it ended without saying {event!r}: {''.join(said)}")


def answer(variables: dict[str, str], path: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", int(variables["HEALTH__PORT"]), timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_it_holds_the_environment_the_migrations_and_the_settings_and_nothing_else(image: Image) -> None:
    assert sorted(path.name for path in image.root.iterdir()) == ["app", "data"]
    assert sorted(path.name for path in image.workdir.iterdir()) == [
        ".venv",
        "alembic.ini",
        "migrations",
        "settings.toml",
    ]
    (packages,) = image.root.glob("app/.venv/lib/*/site-packages")
    assert (packages / "shop" / "app.py").is_file()
    assert (packages / "mailroom" / "host.py").is_file()
    held = [path for path in image.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert held == []


def test_it_installs_what_the_service_needs_and_no_tool_of_its_makers(image: Image) -> None:
    names = {name.lower() for name in installed(image)}
    assert {"shop", "sqlalchemy", "aiosqlite", "typer"} <= names
    assert not {"pytest", "ruff", "mypy", "hypothesis", "uv", "pip", "hatchling"} & names


def test_the_lock_file_decides(image: Image) -> None:
    name, version = LOCKED
    assert installed(image)[name] == version


def test_without_a_lock_file_the_newest_versions_are_taken_and_it_runs_all_the_same(
    shop: Path, build: Build, tmp_path: Path
) -> None:
    assert not (shop / "uv.lock").exists()
    image = build(shop)
    name, version = LOCKED
    assert installed(image)[name] != version
    variables = own_variables(image, tmp_path)
    assert run(image, variables, "shop", "db", "upgrade").returncode == 0
    with started(image, variables):
        assert answer(variables, "/ready")[0] == 200


def test_a_lock_file_that_does_not_fit_fails_the_build(own_shop: Path, build: Build) -> None:
    lock(own_shop)
    project = own_shop / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert "    # Yours:\n" in text
    project.write_text(text.replace("    # Yours:\n", '    # Yours:\n    "tzdata",\n', 1), encoding="utf-8")
    with pytest.raises(AssertionError, match="needs to be updated"):
        build(own_shop)


def test_its_files_can_be_read_by_its_user_and_written_by_nobody_else_than_root(image: Image) -> None:
    for path in (image.workdir / name for name in ("settings.toml", "alembic.ini", "migrations", "migrations/env.py")):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o044 == 0o044, path
        assert mode & 0o022 == 0, path


def test_it_runs_as_a_user_of_a_fixed_number_and_gets_the_signal_itself(image: Image) -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", image.noted["USER"])
    assert image.noted["STOPSIGNAL"] == "SIGTERM"
    assert image.command == ["shop", "run"]
    assert image.noted["EXPOSE"] == image.env["HEALTH__PORT"]
    assert image.env["DATABASE__URL"] == f"sqlite+aiosqlite:///{image.root}/data/shop.db"


def test_migrating_is_a_step_of_its_own_and_without_it_nothing_starts(image: Image, variables: dict[str, str]) -> None:
    refused = run(image, variables, *image.command)
    assert refused.returncode == 1
    assert "shop db upgrade" in refused.stdout
    upgraded = run(image, variables, "shop", "db", "upgrade")
    assert upgraded.returncode == 0, upgraded.stdout
    with started(image, variables):
        assert answer(variables, "/ready")[0] == 200


def test_it_logs_json_answers_while_it_runs_and_stops_when_told_to(image: Image, variables: dict[str, str]) -> None:
    variables["MESSAGE_BUS__ENABLE_OUTBOX"] = "true"
    assert run(image, variables, "shop", "db", "upgrade").returncode == 0
    assert run(image, variables, *image.health_command).returncode != 0
    with started(image, variables) as process:
        for path in ("/live", "/ready"):
            status, body = answer(variables, path)
            assert (status, body["ok"]) == (200, True), body
        assert run(image, variables, *image.health_command).returncode == 0
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=STOPS_WITHIN_SECONDS)
        assert process.returncode == 0
        assert [json.loads(line)["event"] for line in said.splitlines()] == ["stopping", "stopped"]


def test_its_health_check_asks_past_any_proxy(image: Image, variables: dict[str, str]) -> None:
    variables |= {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    assert run(image, variables, "shop", "db", "upgrade").returncode == 0
    with started(image, variables):
        assert run(image, variables, *image.health_command).returncode == 0


def test_without_its_settings_file_it_is_no_silent_monolith(image: Image, variables: dict[str, str]) -> None:
    settings = image.workdir / "settings.toml"
    aside = settings.rename(settings.with_suffix(".aside"))
    try:
        refused = run(image, variables, *image.command)
    finally:
        aside.rename(settings)
    assert refused.returncode == 2
    assert "settings.toml" in refused.stdout
    assert "Traceback" not in refused.stdout


@pytest.mark.parametrize("answers", [{}, ODD], ids=["defaults", "odd"])
def test_what_it_starts_is_the_command_of_the_project(
    by_copier: Render, tmp_path: Path, answers: dict[str, str]
) -> None:
    project = by_copier(tmp_path / "in", **answers)
    scripts = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    started_with = dict(steps(project / "Dockerfile"))["ENTRYPOINT"]
    assert json.loads(started_with) == list(scripts)
