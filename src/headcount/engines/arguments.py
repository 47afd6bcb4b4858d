"""An engine's own arguments, by their own names: ``--engine-arg block-size=32``.

Each engine lists those that change memory. Values are checked here, so that an engine reads typed ones:

    values = read_arguments(settings.arguments, VLLM_ARGUMENTS, engine="vllm")
    values["block-size"]        # 32, or the default stated in the list
"""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError, nearest
from headcount.record import Record
from headcount.units import parse_bytes, parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KINDS = ("flag", "count", "fraction", "bytes", "choice")
_YES, _NO = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")


class Argument(Record):
    """One argument: ``kind`` flag, count (>= ``least``), fraction (0 to 1), bytes or choice (of ``choices``).

    ``default`` is what an engine reads when the argument was not given.
    """

    name: str
    kind: str
    help: str
    default: int | float | bool | str | None = None
    least: int = 1
    choices: tuple[str, ...] = ()

    def _check(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"argument kind {self.kind!r}; known: {', '.join(KINDS)}")


def plain(name: str) -> str:
    """``--gpu_memory`` and ``gpu-memory`` are one name."""
    return name.strip().lstrip("-").replace("_", "-").lower()


def read_arguments(
    given: Iterable[tuple[str, str]], allowed: Sequence[Argument], *, engine: str
) -> dict[str, int | float | bool | str | None]:
    """Return a value for every argument in ``allowed``: the given one, checked, else its default.

    Raises UsageError for a name that the engine has no rule for and for a bad value.
    """
    known = {argument.name: argument for argument in allowed}
    values = {argument.name: argument.default for argument in allowed}
    for name, text in given:
        argument = known.get(plain(name))
        if argument is None:
            raise _unknown(name, known, engine)
        values[argument.name] = _value(argument, text.strip())
    return values


# Arguments of engines that every engine has under an option of ours.
_OPTIONS = {
    "--utilization": (
        "gpu-memory-utilization",
        "mem-fraction-static",
        "free-gpu-memory-fraction",
        "kv-cache-free-gpu-memory-fraction",
    ),
    "--max-seqs": ("max-num-seqs", "max-running-requests", "max-batch-size"),
    "--max-batched-tokens": ("max-num-batched-tokens", "max-num-tokens"),
    "--tp": ("tensor-parallel-size", "tp", "tp-size"),
    "--pp": ("pipeline-parallel-size", "pp", "pp-size"),
    "--dp": ("data-parallel-size", "dp", "dp-size"),
    "--kv": ("kv-cache-dtype", "cache-type"),
    "--weights": ("quantization", "dtype"),
    "--context": ("context-length", "ctx-size", "max-seq-len"),
}


def _unknown(name: str, known: Iterable[str], engine: str) -> UsageError:
    """The option that stands for it, or everything the engine has a rule for."""
    for option, theirs in _OPTIONS.items():
        if plain(name) in theirs:
            return UsageError(f"--engine-arg {name}: every engine has an option for it, {option}")
    names = list(known)
    if not names:
        return UsageError(f"--engine-arg {name}: {engine} has no arguments of its own")
    close = nearest(plain(name), names)
    hint = f"; nearest: {', '.join(close)}" if close else ""
    return UsageError(f"unknown {engine} argument {name!r:.60}{hint}; known: {', '.join(names)}")


def _value(argument: Argument, text: str) -> int | float | bool | str:
    what = f"--engine-arg {argument.name}"
    if argument.kind == "flag":
        if text.lower() in (*_YES, *_NO):
            return text.lower() in _YES
        raise UsageError(f"{what} is a flag: {text!r} is neither true nor false")
    if argument.kind == "count":
        if argument.least == 0 and text == "0":
            return 0
        return parse_count(text, what=what, maximum=2**40)
    if argument.kind == "fraction":
        return parse_fraction(text, what=what)
    if argument.kind == "bytes":
        return parse_bytes(text, what=what)
    if text not in argument.choices:
        raise UnknownNameError(what=what, given=text, allowed=argument.choices)
    return text
