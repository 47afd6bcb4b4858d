"""Fill README.md's examples with the program's present output.

Run: python scripts/readme_examples.py          (tests/test_readme.py fails when an example is stale)
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"```console\n\$ headcount (?P<command>[^\n]*)\n(?P<output>.*?)```", re.S)


def output_of(command: str) -> str:
    """What ``headcount COMMAND`` prints: stdout, then stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "headcount", *command.split()], capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def filled(text: str) -> str:
    """``text`` with every console block (and ``@@command`` line) replaced by fresh output."""
    text = re.sub(r"^@@(.*)$", lambda m: f"```console\n$ headcount {m.group(1)}\n```", text, flags=re.M)
    return _BLOCK.sub(lambda m: f"```console\n$ headcount {m['command']}\n{output_of(m['command'])}```", text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
