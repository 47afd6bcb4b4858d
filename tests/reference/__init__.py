"""Comparisons with an installed transformers; run with ``pytest -m reference``."""
