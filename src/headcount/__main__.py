"""``python -m headcount``."""

from headcount.cli.main import run

run()
