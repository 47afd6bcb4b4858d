"""``python -m headcount.cli``."""

from headcount.cli.main import run

run()
