"""Chat templates: messages -> the text a model was trained to continue.

A template is a Jinja program that comes with the weights, so it is run as a stranger's (``sandbox.py``): no way to Python,
bounded length, time and memory. What it sees is plain data: texts, numbers, lists, dictionaries.

    render(template, [{"role": "user", "content": "Hello"}], names=tokenizer.names)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError

from headcount.errors import ModelFileError, UsageError
from headcount.spec.checkpoint import shown
from headcount.transformer.weights.sandbox import RaisedByTemplateError, Sandbox
from headcount.transformer.weights.template_fuel import FUEL, OutOfFuelError
from headcount.units import KIB, MIB, human_bytes

# The longest published template has about 24 KiB.
TEMPLATE_LIMIT = 48 * KIB
OUTPUT_LIMIT = 16 * MIB
_DEPTH = 64


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    names: Mapping[str, str] | None = None,
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    now: datetime | None = None,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a conversation.

    messages   ``{"role": ..., "content": ...}`` in order; names: special tokens by role (``Tokenizer.names``)
    tools      functions the model may call, as the template wants them; values: whatever else it asks for
    now        the time ``strftime_now`` tells; None is the clock's

    Raises
    ------
    ModelFileError: the template is damaged, too long, reaches for what it must not, or exceeds time, memory or length.
    UsageError: the template itself refuses these messages, or they are no plain data.
    """
    if len(template) > TEMPLATE_LIMIT:
        raise ModelFileError(
            f"chat template of {human_bytes(len(template))}; at most {human_bytes(TEMPLATE_LIMIT)} are run"
        )
    given = _plain({**(values or {}), **(names or {}), "messages": list(messages), "tools": tools})
    given["add_generation_prompt"] = add_generation_prompt
    sandbox = Sandbox()
    sandbox.now = now
    # A conversation itself is paid for, so that a long one does not starve its template.
    sandbox.fuel = FUEL + 64 * _size(given)
    pieces, length, what = [], 0, "it is nested too deep"
    try:
        compiled = sandbox.from_string(template)
        # Python's own parser says "no memory" of what is nested too deep for it; from here on the words mean themselves.
        what = "it needs more memory than there is"
        for piece in compiled.generate(given):
            length += len(piece)
            if length > OUTPUT_LIMIT:
                raise OutOfFuelError(f"it writes more than {human_bytes(OUTPUT_LIMIT)}")
            pieces.append(piece)
    except RaisedByTemplateError as error:
        raise UsageError(
            f"the chat template refuses these messages: {shown(str(error), limit=300)}"
        ) from None
    except OutOfFuelError as error:
        raise ModelFileError(f"chat template: {error.message}") from None
    except SecurityError as error:
        raise ModelFileError(f"chat template reaches for what it must not: {shown(str(error))}") from None
    except RecursionError:
        raise ModelFileError("chat template: it is nested too deep") from None
    except MemoryError:
        raise ModelFileError(f"chat template: {what}") from None
    except Exception as error:
        # Whatever else goes wrong (a syntax error, a missing key, a division by zero) is the file's fault.
        raise ModelFileError(f"chat template fails: {type(error).__name__}: {shown(str(error))}") from None
    return "".join(pieces)


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy of plain data; anything else (objects have methods) is refused."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > _DEPTH:
        raise UsageError(f"messages are nested more than {_DEPTH} deep")
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise UsageError("messages: the keys of a dictionary must be texts")
        return {key: _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    raise UsageError(
        f"messages hold a {type(value).__name__}; only texts, numbers, lists and dictionaries can be shown"
    )


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 64 * len(value) + sum(_size(one) for one in value.values())
    return 64 + sum(_size(one) for one in value) if isinstance(value, list) else 64
