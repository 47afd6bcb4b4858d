"""Shell to answer: whole-process wall times of headcount and two peers, as multiples of ``python -c pass``.

    ratio = median wall time of a command / median wall time of ``python -c pass`` in the same environment

Run with the python of a fresh environment that holds the installed wheel (see README.md). Commands are interleaved
(A B C ... A B C ...), so that a slow moment of the machine falls on all of them. Exit 1 when a budget is exceeded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple

SCRIPTS = sysconfig.get_path("scripts")
CARD = ("--gpu", "a100-80gb")
JSON_BUDGET = 4.0
TABLE_BUDGET = 8.0
MEMORY_RUNS = 5
# A launcher without ``site``, smaller than any row: a child's peak RSS starts at what its parent held when it forked.
LAUNCHER = """
import posix, sys
quiet = [(posix.POSIX_SPAWN_OPEN, fd, "/dev/null", posix.O_WRONLY, 0) for fd in (1, 2)]
pid = posix.posix_spawn(sys.argv[1], sys.argv[1:], posix.environ, file_actions=quiet)
print(posix.wait4(pid, 0)[2].ru_maxrss)
"""


class Row(NamedTuple):
    """One command: what is shown, what is run, and the most it may cost (None: no budget is set)."""

    label: str
    argv: tuple[str, ...]
    budget: float | None = None
    peer: bool = False


class Run(NamedTuple):
    """One whole process: seconds from spawn to exit, exit code, both streams."""

    seconds: float
    code: int
    output: str
    talk: str


def script(name: str) -> str:
    return os.path.join(SCRIPTS, name)


def rows() -> list[Row]:
    fit = (script("headcount"), "fit", "mistral-7b", *CARD, "--context", "4096")
    book = (script("headcount"), "book", "llama-2-7b", *CARD, "--users", "200", "--context", "2048")
    show = (script("headcount"), "show", "deepseek-v3")
    kvfit = (script("kvfit"), "mistralai/Mistral-7B-v0.1", "--hardware", "custom:80", "--context", "4096")
    hf_mem = (script("hf-mem"), "--model-id", "mistralai/Mistral-7B-v0.1", "--experimental")
    return [
        Row("python -c pass", (sys.executable, "-c", "pass")),
        Row("headcount fit --json", (*fit, "--json"), JSON_BUDGET),
        Row("headcount fit (table)", fit, TABLE_BUDGET),
        Row("headcount book --json", (*book, "--json")),
        Row("headcount book (table)", book, TABLE_BUDGET),
        Row("headcount show --json", (*show, "--json")),
        Row("headcount show (table)", show, TABLE_BUDGET),
        Row("kvfit --help", (script("kvfit"), "--help"), peer=True),
        Row("kvfit MODEL --json", (*kvfit, "--json"), peer=True),
        Row("hf-mem --help", (script("hf-mem"), "--help"), peer=True),
        Row("hf-mem MODEL --json", (*hf_mem, "--max-model-len", "4096", "--json-output"), peer=True),
    ]


def environment() -> dict[str, str]:
    """The caller's, without what would change which package is imported or keep it from being compiled."""
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONSTARTUP", "PYTHONHASHSEED")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def run(row: Row) -> Run:
    start = time.perf_counter()
    done = subprocess.run(row.argv, capture_output=True, text=True, env=environment(), check=False)
    return Run(time.perf_counter() - start, done.returncode, done.stdout, done.stderr)


def peak_kib(row: Row) -> float:
    """Median peak RSS over a few runs of their own, so that no timed run carries the launcher."""
    argv = [sys.executable, "-I", "-S", "-c", LAUNCHER, *row.argv]
    return median(
        int(subprocess.run(argv, capture_output=True, text=True, env=environment(), check=True).stdout)
        for _ in range(MEMORY_RUNS)
    )


def note(row: Row, first: Run) -> str:
    """What the row really did: a peer that cannot answer offline must not look as if it had."""
    if not row.peer:
        return ""
    if "--help" in row.argv:
        return "no question asked: start-up and help text only"
    if first.code == 0:
        return "answered, over the network"
    last = (first.talk.strip().splitlines() or ["no message"])[-1]
    return f"NO ANSWER, exit {first.code}: {last[:90]}"


def measure(wanted: Sequence[Row], rounds: int) -> dict[str, list[float]]:
    """Seconds of every command, round by round."""
    seconds: dict[str, list[float]] = {row.label: [] for row in wanted}
    for _ in range(rounds):
        for row in wanted:
            seconds[row.label].append(run(row).seconds)
    return seconds


def print_table(wanted: Sequence[Row], seconds: dict[str, list[float]], notes: dict[str, str]) -> bool:
    """Print medians, spreads, ratios and peak RSS; return whether every budget holds."""
    base = seconds[wanted[0].label]
    held = True
    head = f"{'command':<24}{'median':>9}{'min':>8}{'max':>8}{'ratio':>8}{'p10-p90':>13}{'RSS':>10}  budget"
    print(head + "\n" + "-" * len(head))
    for row in wanted:
        own = seconds[row.label]
        ratio = median(own) / median(base)
        tenths = quantiles([a / b for a, b in zip(own, base, strict=True)], n=10)
        spread = f"{tenths[0]:.2f}-{tenths[-1]:.2f}"
        verdict = ""
        if row.budget is not None:
            within = ratio <= row.budget
            held = held and within
            verdict = f"<= {row.budget:g} x: {'holds' if within else 'EXCEEDED'}"
        times = "".join(
            f"{1e3 * value:>{width}.1f}"
            for value, width in zip((median(own), min(own), max(own)), (9, 8, 8), strict=True)
        )
        print(f"{row.label:<24}{times}{ratio:>7.2f}x{spread:>13}{peak_kib(row) / 1024:>6.1f} MiB  {verdict}")
    print("\nmilliseconds; ratio of medians to the first row; p10-p90: the same ratio within each round")
    for label, words in notes.items():
        print(f"{label}: {words}")
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds after the warm-up (at least 15)")
    rounds = parser.parse_args().rounds
    if rounds < 15:
        parser.error(f"--rounds {rounds}: at least 15, or the median says little")
    wanted, notes = [], {}
    for row in rows():
        if not os.path.exists(row.argv[0]):
            if not row.peer:
                parser.error(f"{row.argv[0]} is missing: install the wheel into this environment first")
            notes[row.label] = "not installed here, not timed"
            continue
        # The warm-up: two runs each, so that byte code and disk pages are there.
        run(row)
        first = run(row)
        if first.code != 0 and not row.peer:
            parser.error(f"{row.label} failed with {first.code}: {first.talk.strip()}")
        if note(row, first):
            notes[row.label] = note(row, first)
        wanted.append(row)
    print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores, {rounds} interleaved rounds\n")
    return 0 if print_table(wanted, measure(wanted, rounds), notes) else 1


if __name__ == "__main__":
    sys.exit(main())
