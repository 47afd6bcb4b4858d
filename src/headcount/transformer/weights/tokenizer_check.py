"""Check a stranger's ``tokenizer.json`` before the library builds it: what its steps could make of one letter.

A normaliser or decoder that replaces "e" by a thousand letters, four times over, makes 10^12 letters of one, and the library
ends the process when memory runs out. So, before anything is built:

    literals    what a step inserts (``content``, ``prepend``, ``prefix``, ...) has at most 64 letters
    steps       at most 64 in a section, 64 pieces in a template of special tokens
    growth      product over a section's steps of the letters each makes of one: at most 4,096
    tokens      at most 4,096 letters each

Published files need a few letters, a dozen steps and a growth below 100.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import shown

LITERAL_LIMIT = 64
STEP_LIMIT = 64
GROWTH_LIMIT = 4096
TOKEN_LIMIT = 4096
_PATTERN_LIMIT = 8192
_SECTIONS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_CHARACTER_MAP = "precompiled_charsmap"
# Letters made of one: byte alphabets spell four bytes, BERT puts blanks around, an empty pattern is found between any two.
_GROWTH = {"ByteLevel": 4, "BertNormalizer": 3, "BPEDecoder": 2, "CTC": 2, "WordPiece": 2}


class Growth(NamedTuple):
    """How many letters one letter may become before it is cut into tokens, and one token when it is decoded."""

    encoding: int = 1
    decoding: int = 1


def check_tokenizer(text: str, name: str) -> Growth:
    """Check the text of a ``tokenizer.json``; ``name`` is for messages.

    Raises ModelFileError when it is no JSON object, says things twice, or could grow beyond the limits above.
    """
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{shown(name)} is no tokenizer that can be used: {shown(str(error))}") from None
    if not isinstance(document, dict):
        raise ModelFileError(f"{shown(name)} is no tokenizer that can be used: not a JSON object")
    growth = {section: _section(document.get(section), f"{name}: {section}") for section in _SECTIONS}
    longest = max((len(token) for token in _tokens(document)), default=0)
    if longest > TOKEN_LIMIT:
        raise ModelFileError(
            f"{shown(name)} holds a token of {longest:,} letters; at most {TOKEN_LIMIT:,} are read"
        )
    return Growth(growth["normalizer"] * growth["pre_tokenizer"], growth["decoder"] * max(longest, 1))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a setting given twice the library might take the other one."""
    found = dict(pairs)
    if len(found) != len(pairs) and not all(isinstance(value, int) for value in found.values()):
        raise ValueError("a setting is given twice")
    return found


def _section(section: Any, where: str) -> int:
    """Check one section; return the growth of all its steps together."""
    growth = 1
    for number, step in enumerate(_steps(section), start=1):
        _check_literals(step, where)
        growth *= _growth(step, where)
        if number > STEP_LIMIT:
            raise ModelFileError(f"{shown(where)} has more than {STEP_LIMIT} steps")
        if growth > GROWTH_LIMIT:
            raise ModelFileError(f"{shown(where)} makes more than {GROWTH_LIMIT:,} letters of one")
    return growth


def _steps(section: Any) -> Iterator[dict[str, Any]]:
    """The steps of a section, sequences within sequences opened (a sequence is a step too)."""
    waiting = [section]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            yield step
            for key in _LISTS:
                parts = step.get(key)
                waiting += parts if isinstance(parts, list) else []


def _check_literals(step: dict[str, Any], where: str) -> None:
    """Every text and list of a step is short, however deep; steps within it are checked on their own."""
    waiting = [(key, value) for key, value in step.items() if key not in _LISTS]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, str):
            limit = _PATTERN_LIMIT if key in ("Regex", "String", "pattern") else LITERAL_LIMIT
            if len(value) > limit and key != _CHARACTER_MAP:
                raise ModelFileError(
                    f"{shown(where)}: {shown(key)} has {len(value):,} letters; at most {limit:,} are read"
                )
        elif isinstance(value, list | dict):
            if len(value) > STEP_LIMIT and key != _CHARACTER_MAP:
                raise ModelFileError(
                    f"{shown(where)}: {shown(key)} has {len(value):,} entries; at most {STEP_LIMIT} are read"
                )
            if key != _CHARACTER_MAP:
                waiting += value.items() if isinstance(value, dict) else [(key, part) for part in value]
                waiting += [("key", part) for part in value] if isinstance(value, dict) else []


def _growth(step: dict[str, Any], where: str) -> int:
    """How many letters a step may make of one."""
    kind = step.get("type")
    content = step.get("content")
    if kind == "Replace" and isinstance(content, str):
        pattern = step.get("pattern")
        literal = pattern.get("String") if isinstance(pattern, dict) else pattern
        # A regular expression may match nothing at all, between any two letters.
        return max(len(content), 1) if isinstance(literal, str) and literal else 1 + len(content)
    if _CHARACTER_MAP in step:
        return _longest_mapping(step[_CHARACTER_MAP], where)
    return _GROWTH.get(kind, 1) if isinstance(kind, str) else 1


def _longest_mapping(value: Any, where: str) -> int:
    """The longest replacement in a SentencePiece character map: bytes of a trie, the trie, texts that end with a zero."""
    try:
        raw = (
            bytes(value)
            if isinstance(value, list)
            else base64.b64decode(value or "")
            if isinstance(value, str)
            else b""
        )
    except (ValueError, TypeError, binascii.Error):
        raise ModelFileError(f"{shown(where)}: {_CHARACTER_MAP} is not base64") from None
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max((len(part) for part in texts.split(b"\0")), default=1) or 1


def _tokens(document: dict[str, Any]) -> Iterator[str]:
    """Every token the file lists."""
    added, model = document.get("added_tokens"), document.get("model")
    for one in added if isinstance(added, list) else []:
        content = one.get("content") if isinstance(one, dict) else None
        if isinstance(content, str):
            yield content
    if not isinstance(model, dict):
        return
    yield from (value for value in model.values() if isinstance(value, str))
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        yield from vocabulary
    elif isinstance(vocabulary, list):
        yield from (one[0] for one in vocabulary if isinstance(one, list) and one and isinstance(one[0], str))
