"""The house: rooms import only rooms below them, function-local imports included, and no cycle exists."""

from __future__ import annotations

import ast
from pathlib import Path

import headcount

SOURCE = Path(headcount.__file__).parent
# Room -> rooms it may import (docs/architecture.md). ``record``, ``errors``, ``units``, ``ledger`` are the foundation.
FOUNDATION = {"record", "errors", "units", "ledger", "__init__"}
ARROWS = {
    "record": set(),
    "errors": set(),
    "units": {"errors"},
    "ledger": {"record"},
    "spec": FOUNDATION,
    "hardware": FOUNDATION,
    "transformer": FOUNDATION | {"spec"},
    "cost": FOUNDATION | {"spec", "hardware"},
    "engines": FOUNDATION | {"spec", "hardware", "cost"},
    "planner": FOUNDATION | {"spec", "hardware", "cost", "engines"},
    "experiments": FOUNDATION | {"spec", "hardware", "cost", "transformer"},
    "verify": FOUNDATION | {"spec", "hardware", "cost", "engines", "planner", "transformer"},
    "explain": FOUNDATION | {"spec", "hardware", "cost", "transformer", "engines", "planner", "experiments"},
    "report": FOUNDATION
    | {"spec", "hardware", "cost", "engines", "planner", "transformer", "experiments", "explain", "verify"},
    "cli": FOUNDATION
    | {
        "spec",
        "hardware",
        "cost",
        "engines",
        "planner",
        "transformer",
        "experiments",
        "explain",
        "verify",
        "report",
    },
    "__main__": {"cli"},
    "__init__": set(),
}


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_rooms(path: Path) -> set[tuple[str, int]]:
    """Every ``headcount`` room this file imports, at any depth, with the line."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = (
                [node.module]
                if node.module != "headcount"
                else [f"headcount.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "headcount":
                found.add((parts[1] if len(parts) > 1 else "__init__", node.lineno))
    return found


def test_every_import_follows_an_arrow() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path)
        for target, line in imported_rooms(path):
            known = target if target in ARROWS else "__init__"
            if known != room and known not in ARROWS[room]:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {room} -> {target}")
    assert not wrong, "\n".join(wrong)


def test_no_relative_or_star_imports() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                assert all(alias.name != "*" for alias in node.names), path


def test_size_budget() -> None:
    """File at most 400 code lines, function at most 60 lines and 7 parameters."""
    long = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text)
        documented = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        code = [
            number
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in documented
        ]
        if len(code) > 400:
            long.append(f"{path.relative_to(SOURCE)}: {len(code)} code lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = [n for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in set(code)]
                arguments = node.args.args + node.args.kwonlyargs + node.args.posonlyargs
                count = len([a for a in arguments if a.arg not in ("self", "cls")])
                if len(body) > 60 or count > 7:
                    long.append(
                        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}: {len(body)} lines, {count} parameters"
                    )
    assert not long, "\n".join(long)
