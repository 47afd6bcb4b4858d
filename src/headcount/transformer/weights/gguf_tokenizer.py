r"""Rebuild a tokenizer from a GGUF file's vocabulary.

    tokenizer.ggml.model = gpt2    byte-level byte-pair encoding: ``tokens`` in the byte alphabet, ``merges`` in order;
                                   ``tokenizer.ggml.pre`` names how text is cut into words first
    tokenizer.ggml.model = llama   SentencePiece byte-pair encoding with byte fallback: two neighbours that make a token are
                                   merged, the highest score first, so merges follow from ``tokens`` and ``scores``

Token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Control and user-defined tokens are matched
in the text before anything else. Any other model or ``pre`` is refused by name: a wrong cut gives plausible wrong ids.

Sources: llama.cpp ``llama-vocab.cpp`` (word patterns, defaults; 2026-11); Kudo, Richardson 2018 (SentencePiece).
"""

from __future__ import annotations

import os
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headcount.errors import ModelFileError, UnsupportedModelError, nearest
from headcount.spec.checkpoint import shown
from headcount.transformer.weights.gguf_file import GgufSource
from headcount.transformer.weights.tokenizer import NAMED, SpecialTokens, Tokenizer, build
from headcount.transformer.weights.tokenizer_check import Growth

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
BLANK = "\u2581"
_KEYS = dict(
    zip(NAMED, ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"), strict=True)
)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "*"
    + _LOWER
    + "+{0}|"
    + r"[^\r\n\p{L}\p{N}]?"
    + _UPPER
    + "+"
    + _LOWER
    + "*{0}|"
)
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED.replace("{0}", "") + r"\p{N}" + _CASED_TAIL
_GPT4O = _CASED.replace("{0}", _CASELESS + "?") + r"\p{N}{1,3}" + _CASED_TAIL
# Each pattern is applied to what the ones before it left whole.
PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2", "jais", "trillion"), (_GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2)
    ),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe"), (_LLAMA3,)
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
}
# A word that is a token whole is taken whole, whatever the merges would make of it.
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken")
COMPOSED = ("qwen2", "deepseek-r1-qwen")  # text is put into Unicode's composed form first
BEGIN_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe", "tekken")
# Ends of a turn by name, for files that mark only the end of the text.
TURN_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<EOT>",
    "<end_of_utterance>", "<|return|>", "<|call|>", "<turn|>",
)  # fmt: skip


def gguf_tokenizer(source: GgufSource) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Raises
    ------
    UnsupportedModelError: a kind that is not known.    ModelFileError: a vocabulary that is missing or contradicts itself.
    """
    kind = source.text("tokenizer.ggml.model")
    tokens = _texts(source, "tokens")
    types = source.array("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelFileError(f"{shown(source.path)}: {len(types):,} token types for {len(tokens):,} tokens")
    pre = source.text("tokenizer.ggml.pre") or "default"
    if kind == "gpt2":
        backend, begins = _byte_level(source, tokens, types, pre), pre in BEGIN_BY_DEFAULT
    elif kind == "llama":
        backend, begins = _sentence_piece(source, tokens, types), True
    else:
        raise UnsupportedModelError(f"GGUF tokenizer {shown(kind)} is not supported; known: gpt2, llama")
    _add_tokens(backend, tokens, types)
    names = _special_names(source, tokens)
    stops = {
        i for i in (_index(source, key, tokens) for key in ("eot_token_id", "eom_token_id")) if i is not None
    }
    control = {token: i for i, token in enumerate(tokens) if types[i] == CONTROL}
    stops.update(control[name] for name in TURN_ENDS if name in control)
    add_bos, add_eos = _flag(source, "add_bos_token", begins), _flag(source, "add_eos_token", False)
    template = source.text("tokenizer.chat_template")
    special = SpecialTokens(names, frozenset(stops), template, add_bos, add_eos)
    growth = Growth(encoding=4, decoding=max(map(len, tokens)))
    return Tokenizer(backend, special, name=os.path.basename(source.path), growth=growth)


def _byte_level(source: GgufSource, tokens: list[str], types: list[int], pre: str) -> Backend:
    if pre not in PATTERNS:
        close = ", ".join(nearest(pre, PATTERNS)) or ", ".join(PATTERNS)
        raise UnsupportedModelError(f"GGUF pre-tokenizer {shown(pre)} is not supported; nearest: {close}")
    alphabet = _byte_alphabet()
    letters = set(alphabet)
    matched = (CONTROL, USER_DEFINED)
    vocabulary = {
        token
        if kind in matched or letters.issuperset(token)
        else "".join(alphabet[b] for b in token.encode()): i
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
    }
    merges = [_pair(text) for text in _texts(source, "merges")]
    whole = pre in WHOLE_WORDS
    backend = build(source.path, lambda: Backend(models.BPE(vocabulary, merges, ignore_merges=whole)))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_alphabet() -> list[str]:
    """The letter of each byte: itself where printable, else the next free one from U+0100 on (GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise ModelFileError(f"tokenizer.ggml.merges: {shown(merge)} is not two tokens")
    return left, right


def _sentence_piece(source: GgufSource, tokens: list[str], types: list[int]) -> Backend:
    gemma = source.architecture.startswith("gemma")
    if gemma:  # its files spell runs of blanks as blanks
        tokens = [BLANK * len(token) if token and not token.strip(" ") else token for token in tokens]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelFileError(
            f"{shown(source.path)}: {len(tokens) - len(vocabulary):,} tokens are listed twice"
        )
    merges = _merges(source, tokens, types, vocabulary, in_order=gemma)
    unknown = _index(source, "unknown_token_id", tokens)
    model = build(
        source.path,
        lambda: models.BPE(
            vocabulary,
            merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    )
    backend = Backend(model)
    prefix = _flag(source, "add_space_prefix", True)
    parts: list[Any] = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if source.architecture == "phi3":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
        )
        parts.append(decoders.Strip(" ", 1, 0))
    elif prefix and not gemma:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False)
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", BLANK)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(parts)
    return backend


def _merges(
    source: GgufSource, tokens: list[str], types: list[int], vocabulary: dict[str, int], *, in_order: bool
) -> list[tuple[str, str]]:
    """The file's merges, or every way of making a token of two, best token first (Gemma: in vocabulary order).

    Of several ways of making one token, the longest left part comes first.
    """
    stated = source.array("tokenizer.ggml.merges")
    if stated is not None:
        return [_pair(text) for text in stated]
    order = list(range(len(tokens)))
    if not in_order:
        scores = source.array("tokenizer.ggml.scores")
        if scores is None or len(scores) != len(tokens) or not all(score == score for score in scores):
            raise ModelFileError(f"{shown(source.path)}: tokens need one score each, and no NaN")
        order.sort(key=lambda i: -scores[i])
    usable = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    merges = []
    for i in order:
        token = tokens[i]
        if token in usable:
            merges += [
                (token[:cut], token[cut:])
                for cut in range(len(token) - 1, 0, -1)
                if token[:cut] in usable and token[cut:] in usable
            ]
    return merges


def _add_tokens(backend: Backend, tokens: list[str], types: list[int]) -> None:
    """Have control and user-defined tokens matched in the text; each must keep its id."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        listed = [
            AddedToken(token, normalized=False, special=special)
            for i, token in enumerate(tokens)
            if types[i] == kind and vocabulary.get(token) == i
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(listed)


def _texts(source: GgufSource, key: str) -> list[str]:
    found = source.array("tokenizer.ggml." + key)
    if not found or not all(isinstance(text, str) for text in found):
        raise ModelFileError(
            f"{shown(source.path, limit=200)} holds no tokenizer.ggml.{key}: no vocabulary in this file"
        )
    return found


def _index(source: GgufSource, key: str, tokens: list[str]) -> int | None:
    """A token id from the metadata; None when the file states none."""
    value = source.metadata.get("tokenizer.ggml." + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < len(tokens):
        raise ModelFileError(
            f"{shown(source.path)}: tokenizer.ggml.{key} {shown(value)} is not one of {len(tokens):,} tokens"
        )
    return value


def _special_names(source: GgufSource, tokens: list[str]) -> dict[str, str]:
    found = {role: _index(source, key, tokens) for role, key in _KEYS.items()}
    return {role: tokens[i] for role, i in found.items() if i is not None}


def _flag(source: GgufSource, key: str, default: bool) -> bool:
    value = source.metadata.get("tokenizer.ggml." + key, default)
    if not isinstance(value, bool):
        raise ModelFileError(
            f"{shown(source.path)}: tokenizer.ggml.{key} {shown(value)} is neither true nor false"
        )
    return value
