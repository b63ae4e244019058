"""How long a project takes to be made, by either engine, and to be updated: `make bench-generate`.

What is measured is the command, from its start to its end, as a user waits for it. The template is a clone of what is
committed here, with a second version that changes a file of the framework and a shared one. The engines take turns, so
that whatever else the machine does hits both.

    figure: ratio        the median divided by what it may take: 3 seconds to be made, 10 to be updated

1 is the most that it may be.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MAKING_SECONDS, UPDATING_SECONDS = 3.0, 10.0
CHANGED = ("src/mailroom/errors.py", "settings.toml")
WHO = ("-c", "user.name=Bench", "-c", "user.email=bench@example.com")


def seconds(*command: str | Path, home: Path) -> float:
    """How long a command takes; it must succeed. The engines keep what they keep in a home of their own."""
    began = time.perf_counter()
    kept = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environment = {**os.environ, **kept}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *WHO, *arguments], check=True, capture_output=True)


def template(folder: Path) -> Path:
    """What is committed here as a first version, which is checked out, and a second one."""
    git(ROOT, "clone", "--quiet", "--no-tags", str(ROOT), str(folder))
    git(folder, "tag", "v0.1.0")
    for name in CHANGED:
        with (folder / "{{cookiecutter.project_slug}}" / name).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
    git(folder, "commit", "--quiet", "--all", "--message", "A second version")
    git(folder, "tag", "v0.2.0")
    git(folder, "checkout", "--quiet", "v0.1.0")
    return folder


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """The seconds that each took, over and over again."""
    source, home = template(folder / "template"), folder / "home"
    home.mkdir()
    took: dict[str, list[float]] = {"cookiecutter": [], "copier": [], "update": []}
    for _ in range(rounds):
        shutil.rmtree(folder / "made", ignore_errors=True)
        by_cookiecutter = (BIN / "cookiecutter", "--no-input", "--output-dir", folder / "made", source)
        project = folder / "made" / "by-copier"
        by_copier = (BIN / "copier", "copy", "--quiet", "--defaults", "--vcs-ref", "HEAD", source, project)
        took["cookiecutter"].append(seconds(*by_cookiecutter, home=home))
        took["copier"].append(seconds(*by_copier, home=home))
        git(project, "init", "--quiet")
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", "As it came")
        took["update"].append(seconds(BIN / "copier", "update", "--quiet", "--defaults", project, home=home))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed (7)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        took = {what: statistics.median(times) for what, times in measure(Path(folder), arguments.rounds).items()}
    for what, median in took.items():
        print(f"{what}: {median:.2f} s")
    print(f"a project made by cookiecutter: {took['cookiecutter'] / MAKING_SECONDS:.2f}")
    print(f"a project made by copier: {took['copier'] / MAKING_SECONDS:.2f}")
    print(f"an update of an SQLite project: {took['update'] / UPDATING_SECONDS:.2f}")


if __name__ == "__main__":
    main()
