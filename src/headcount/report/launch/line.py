"""The plain kinds: one command under a comment header, broken before each option, ready to be pasted."""

from __future__ import annotations

import shlex

from headcount.report.launch.planned import DEVICES, Planned

_INDENT = "  "
# Variables that stand before the program on its own line; more of them get a line each.
_MOST_BESIDE = 2


def write_line(made: Planned) -> str:
    """Return the command with its header."""
    extra: tuple[str, ...] = ()
    if made.replicas > 1:
        variable = DEVICES.get(made.plan.deployment.accelerator.vendor, "set of devices")
        port = "OLLAMA_HOST" if made.launch.argv[0] == "ollama" else "--port"
        extra = (f"start it {made.replicas} times, each with its own {variable} and {port}",)
    assignments = [f"{name}={shlex.quote(value)}" for name, value in made.launch.environment]
    groups = option_groups(made.launch.argv)
    lines = [shlex.join(groups[0]), *(_INDENT + shlex.join(group) for group in groups[1:])]
    if len(assignments) > _MOST_BESIDE:
        lines = [*assignments, *lines]
    elif assignments:
        lines[0] = " ".join([*assignments, lines[0]])
    return "\n".join([*made.header(extra), " \\\n".join(lines)]) + "\n"


def option_groups(argv: tuple[str, ...]) -> list[list[str]]:
    """Cut a command line before each option: the program first, then an option with what follows it."""
    # ``python3 -m package`` is one program, and so is a script that a shell is given.
    head = 3 if argv[1:2] == ("-m",) or argv[:2] == ("sh", "-c") else 1
    groups = [list(argv[:head])]
    for word in argv[head:]:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups
