"""What the start-up budget rests on: nothing heavy is imported on the way to a JSON answer (docs/decisions/0001).

Not timed: times are for ``benchmarks/start_up.py``. Each command runs in a fresh interpreter; its ``sys.modules`` and
the names that headcount's own modules asked for are read afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import headcount

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(headcount.__file__)))
COMMANDS = {
    "fit": "fit mistral-7b --gpu a100-80gb --context 4096 --json",
    "book": "book llama-2-7b --gpu a100-80gb --users 200 --context 2048 --json",
    "show": "show deepseek-v3 --json",
}
HEAVY = {
    "asyncio",
    "click",
    "dataclasses",
    "enum",
    "importlib.metadata",
    "importlib.resources",
    "inspect",
    "logging",
    "numpy",
    "pathlib",
    "rich",
    "torch",
    "transformers",
    "typing",
    "urllib",
}
# ``enum`` comes with ``re``, which argparse and json import: there it may be, but no module of ours may ask for it.
WITH_THE_STANDARD_LIBRARY = {"enum"}
MOST_MODULES = 60
PROBE = """
import builtins, io, sys
before = set(sys.modules)
asked = set()
plain_import = builtins.__import__

def noting_import(name, globals=None, locals=None, fromlist=(), level=0):
    who = str((globals or {}).get("__name__"))
    if who.partition(".")[0] == "headcount":
        asked.add((who, name))
        asked.update((who, name + "." + str(part)) for part in fromlist or ())
    return plain_import(name, globals, locals, fromlist, level)

builtins.__import__ = noting_import
answer, sys.stdout = sys.stdout, io.StringIO()
from headcount.cli.main import dispatch
code = dispatch(sys.argv[1:])
written, sys.stdout = sys.stdout.getvalue(), answer
loaded = sorted(set(sys.modules) - before)
builtins.__import__ = plain_import
import json
print(json.dumps({"code": code, "written": written, "loaded": loaded, "asked": sorted(asked)}))
"""


class Trace:
    """What one command loaded (``modules``) and what headcount's modules asked for by name (``asked``)."""

    def __init__(self, command: str) -> None:
        # -S and -I: what an environment's own start-up hooks import is not ours.
        code = f"import sys; sys.path.insert(0, {SOURCE!r})\n{PROBE}"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *command.split()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["code"] == 0
        self.answer = json.loads(report["written"])
        self.modules = set(report["loaded"])
        self.asked = {(who, name) for who, name in report["asked"]}


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def trace(request: pytest.FixtureRequest) -> Trace:
    return Trace(COMMANDS[request.param])


def heavy(names: set[str]) -> set[str]:
    """The names that are, or are inside, a heavy module."""
    return {name for name in names if any(name == each or name.startswith(each + ".") for each in HEAVY)}


def test_the_probe_saw_an_answer(trace: Trace) -> None:
    assert trace.answer
    assert "headcount.cli.main" in trace.modules


def test_nothing_heavy_is_loaded(trace: Trace) -> None:
    assert heavy(trace.modules) <= WITH_THE_STANDARD_LIBRARY


def test_headcount_asks_for_nothing_heavy(trace: Trace) -> None:
    """Also catches a heavy module that the interpreter had loaded before headcount asked for it."""
    assert not [(who, name) for who, name in sorted(trace.asked) if heavy({name})]


def test_few_modules_of_ours(trace: Trace) -> None:
    own = {name for name in trace.modules if name.partition(".")[0] == "headcount"}
    assert len(own) <= MOST_MODULES, sorted(own)


def test_other_commands_are_not_loaded(trace: Trace) -> None:
    commands = {f"headcount.cli.{name}" for name in ("fit", "book", "show", "models", "gpus", "completion")}
    assert len(trace.modules & commands) == 1
