"""Where the weights of MODEL lie."""

from __future__ import annotations

import os

from headcount.errors import UsageError
from headcount.spec.package import PREFIX, package_path
from headcount.spec.reader import cached_snapshot


def model_path(text: str) -> str:
    """The path that MODEL names: a path, ``package:NAME``, or a Hugging Face id in the local cache.

    Raises UsageError when MODEL names a description without weights.
    """
    if text.startswith(PREFIX):
        return package_path(text)
    path = os.path.expanduser(text)
    if os.path.lexists(path):
        return path
    cached = cached_snapshot(text)
    if cached is not None:
        return cached
    raise UsageError(
        f"{text[:120]!r} has no weights here: give a directory with config.json and *.safetensors, a *.gguf file, "
        f"{PREFIX}NAME of an installed package that holds one, or a Hugging Face id in the local cache"
    )
