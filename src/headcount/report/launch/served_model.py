"""What the server is told to load: MODEL of the command line is how headcount found the shape, not always a checkpoint.

org/name                     as it is
llama-3.1-8b                 the catalogue's first repository of that shape, or the one that was named
./model, model/config.json   the directory; *.gguf: the file
package:NAME                 the path inside the package
layers=32,hidden=...         nothing to load: refused
"""

from __future__ import annotations

import os

from headcount.errors import UsageError
from headcount.record import Record

_MOST_OTHERS = 3


class ServedModel(Record):
    """``name`` is what is loaded; ``folder`` the directory that a container must see, "" for a repository.

    notes: what a reader should know, one line each.
    """

    name: str
    folder: str = ""
    notes: tuple[str, ...] = ()


def served_model(text: str) -> ServedModel:
    """Return what to load for MODEL ``text``, which has been read before.

    Raises UsageError for an inline description, a lone config without weights, and a name that no command line, YAML
    file or comment may carry (control characters, line breaks of any script).
    """
    from headcount.spec.inline import is_inline

    given = text.strip()
    if not given.isprintable():
        raise UsageError(
            f"MODEL {given[:80]!r} holds a control character or a line break: no launch line can carry it"
        )
    if given.startswith("package:"):
        from headcount.spec.package import package_path

        return _local(package_path(given))
    path = os.path.expanduser(given)
    if os.path.lexists(path):
        return _local(path)
    if is_inline(given):
        raise UsageError(
            "an inline model is a shape without weights: there is nothing to launch; name a checkpoint"
        )
    return _named(given)


def _local(path: str) -> ServedModel:
    lower = path.lower()
    if os.path.isdir(path):
        target = folder = path
    elif lower.endswith(".gguf"):
        target, folder = path, os.path.dirname(path)
    elif lower.endswith((".safetensors", ".safetensors.index.json", "config.json")):
        target = folder = os.path.dirname(path)
    else:
        raise UsageError(
            f"{path[:200]!r} describes a model and holds no weights: name the checkpoint's directory"
        )
    notes: tuple[str, ...] = ()
    if os.path.isdir(target or ".") and not _has_weights(target or "."):
        notes = (f"{target or '.'} holds no weights here: where the server runs it must hold the checkpoint",)
    # Absolute: the server is started elsewhere, and a name that begins with a dash stays a path.
    return ServedModel(
        name=os.path.abspath(target or "."), folder=os.path.abspath(folder or "."), notes=notes
    )


def _has_weights(folder: str) -> bool:
    return any(name.lower().endswith((".safetensors", ".bin", ".gguf", ".pt")) for name in os.listdir(folder))


def _named(given: str) -> ServedModel:
    from headcount.spec import catalogue

    found = None if _is_cached(given) else catalogue.entry(given)
    if found is None:
        return ServedModel(name=given)
    repositories = [str(alias) for alias in found["aliases"] if "/" in str(alias)]
    same = [name for name in repositories if given.lower() in (name.lower(), name.lower().rpartition("/")[2])]
    if same:
        # Llama 2 has two repositories of each size: only the one in this form can be loaded.
        converted = f"{same[0]}-hf"
        return ServedModel(name=converted if converted in repositories else same[0])
    if not repositories:
        raise UsageError(
            f"the catalogue names no repository for {given!r}: give a Hugging Face id or a path as MODEL"
        )
    note = f"{given} is a shape of the catalogue; {repositories[0]} is its first repository"
    others = repositories[1 : 1 + _MOST_OTHERS]
    if others:
        note += f", others of the same shape: {', '.join(others)}"
    return ServedModel(name=repositories[0], notes=(note,))


def _is_cached(given: str) -> bool:
    from headcount.spec.reader import cached_snapshot

    return "/" in given and cached_snapshot(given) is not None
