"""A process that runs jobs, each in a process of its own: forked, so that a kill costs no new import of everything.

It reads one job per line from standard input, and writes what the job reports line by line to standard output:
`{"pid": ...}` first, `{"exit": ...}` last, which is minus the number of the signal if one killed it.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

MODULES = ("jobs", "broker_jobs")
"""Where jobs are found, each by its name."""
LONGEST_JOB_SECONDS = 6 * 3600
"""So that nothing lives on if the tests themselves are killed."""


def report(**facts: Any) -> None:
    """Tells whoever gave the job. One write, so that a kill leaves no half of a line."""
    os.write(1, f"{json.dumps(facts)}\n".encode())


def _find(do: str) -> Callable[[dict[str, Any]], Coroutine[Any, Any, None]]:
    (job,) = {getattr(import_module(name), do) for name in MODULES if hasattr(import_module(name), do)}
    return job  # type: ignore[no-any-return]


def _run(job: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        report(pid=os.getpid())
        os.chdir(job["folder"])
        asyncio.run(asyncio.wait_for(_find(job["do"])(job), LONGEST_JOB_SECONDS))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
        import_module(module)  # once, for all that are forked
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        report(exit=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[:0] = [str(here), str(here.parents[1] / "{{cookiecutter.project_slug}}" / "src")]
    sys.modules["worker"] = sys.modules["__main__"]
    main()
