"""Hugging Face transformers: one growing batch, or its continuous batching over a paged cache."""

from headcount.engines.transformers.engine import Transformers

__all__ = ["Transformers"]
