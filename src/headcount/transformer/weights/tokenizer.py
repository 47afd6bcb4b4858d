"""Text <-> token ids: ``tokenizer.json``, or a GGUF file's vocabulary; and ids -> text as they arrive, one at a time.

The algorithms (byte-level and SentencePiece byte-pair encoding) are those of the ``tokenizers`` library; this module finds
the files, the special tokens and the ids a generation stops at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import tokenizers
from tokenizers import processors

from headcount.errors import HeadcountError, ModelFileError, OperandError
from headcount.spec.checkpoint import list_directory, shown
from headcount.transformer.weights.source import WEIGHT_FILES, open_weights, read_json, read_text
from headcount.transformer.weights.tokenizer_check import Growth, check_tokenizer

TOKENIZER = "tokenizer.json"
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
_REPLACEMENT = "\ufffd"
# The library ends the process when memory runs out, so the most a text can become is bounded first.
_LETTERS = 1 << 28
Built = TypeVar("Built")


class SpecialTokens(NamedTuple):
    """What a file says about tokens that are not text."""

    names: dict[str, str]  # ``bos_token`` -> ``<s>``, for chat templates
    stops: frozenset[int]
    chat_template: str | None
    # Whether a sequence begins with BOS and ends with EOS; None leaves it to tokenizer.json.
    add_bos: bool | None = None
    add_eos: bool | None = None


class Tokenizer:
    """Text <-> ids.

    bos, eos        ids, or None
    stops           ids at which a generation ends (at least eos)
    names           the special tokens by role, as chat templates ask for them
    chat_template   a Jinja template (``chat.py``), or None
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens,
        *,
        name: str = "the tokenizer",
        growth: Growth | None = None,
    ) -> None:
        """Join a ``tokenizers`` tokenizer to its special tokens. Raises ModelFileError when they contradict.

        ``name`` is the file's, for messages; ``growth`` what one letter or token may become.
        """
        self.name = name
        self._growth = growth or Growth()
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.names = special.names
        self.chat_template = special.chat_template
        self.bos, self.eos = self._id_of("bos_token"), self._id_of("eos_token")
        self.stops = special.stops | ({self.eos} if self.eos is not None else frozenset())
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        if special.add_bos is not None or special.add_eos is not None:
            self._frame(bool(special.add_bos), bool(special.add_eos))

    @property
    def largest_id(self) -> int:
        """The largest token id, which a model's embedding must reach; -1 when there are no tokens."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return max(vocabulary.values(), default=-1)

    def _id_of(self, role: str) -> int | None:
        name = self.names.get(role)
        if name is None:
            return None
        try:
            found: int | None = self._backend.token_to_id(name)
        except UnicodeEncodeError:
            raise ModelFileError(f"tokenizer: {role} {shown(name)} is not valid Unicode text") from None
        if found is None:
            raise ModelFileError(f"tokenizer: {role} {shown(name)} is not in the vocabulary")
        return found

    def _frame(self, add_bos: bool, add_eos: bool) -> None:
        """Make ``encode(special=True)`` put BOS before and EOS after, as asked."""
        pieces, known = ["$A"], []
        if add_bos and self.bos is not None:
            pieces.insert(0, self.names["bos_token"])
            known.append((self.names["bos_token"], self.bos))
        if add_eos and self.eos is not None:
            pieces.append(self.names["eos_token"])
            known.append((self.names["eos_token"], self.eos))
        self._backend.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=known)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The ids of a text. ``special`` adds what begins and ends a sequence (BOS, EOS) where the model wants it.

        A special token spelled out in ``text`` becomes that token, whoever wrote it; text of strangers is escaped first.
        """
        try:
            text.encode()
        except (UnicodeEncodeError, AttributeError):
            raise OperandError(f"encode: {shown(text)} is not valid Unicode text") from None
        self._check_growth(len(text), self._growth.encoding, "letters")
        return build(self.name, lambda: list(self._backend.encode(text, add_special_tokens=special).ids))

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD. ``special`` keeps the names of special tokens."""
        wanted = list(ids)
        for token in wanted:
            if not 0 <= token < 2**32:
                raise OperandError(f"decode: {token} is not a token id")
        self._check_growth(len(wanted), self._growth.decoding, "tokens")
        return build(self.name, lambda: str(self._backend.decode(wanted, skip_special_tokens=not special)))

    def _check_growth(self, count: int, growth: int, what: str) -> None:
        if count * growth > _LETTERS:
            raise OperandError(
                f"{self.name} may make {growth:,} letters of one; {count:,} {what} are too many for it"
            )

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells a token; None for an id it does not have."""
        name: str | None = self._backend.id_to_token(token_id)
        return name

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it; None when it has none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def detokeniser(self) -> Detokeniser:
        """A new streaming decoder."""
        return Detokeniser(self)


class Detokeniser:
    """Ids one at a time -> the text each adds, holding back a character until all its bytes are there.

    The texts of ``push`` and the final ``flush`` together are ``decode`` of all ids. (Only where a model strings bytes
    together that are no UTF-8 may the two show another number of U+FFFD.)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start before the first token."""
        self._tokenizer = tokenizer
        # The last ids that were shown, then those that wait. What was shown tells a decoder that text goes on: many drop
        # the space before the first word.
        self._context: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        """Take one id, return what can be shown now (often one word, sometimes nothing)."""
        self._waiting.append(token_id)
        text = self._new_text()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._context, self._waiting = self._waiting, []
        return text

    def flush(self) -> str:
        """Return what was held back, broken characters as U+FFFD; the next push starts anew."""
        text = self._new_text()
        self._context, self._waiting = [], []
        return text

    def _new_text(self) -> str:
        if not self._waiting:
            return ""
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode([*self._context, *self._waiting])[len(before) :]


def read_tokenizer(path: str) -> Tokenizer:
    """Read the tokenizer of a model: a directory, a weight file in one, a ``tokenizer.json``, or a ``*.gguf`` file.

    Raises
    ------
    ModelFileError: there is none, it is damaged, or it is a kind that is not read (``tokenizer.model``: convert it).
    """
    # It imports this module for Tokenizer.
    from headcount.transformer.weights.gguf_file import GgufSource
    from headcount.transformer.weights.gguf_tokenizer import gguf_tokenizer

    if os.path.isdir(path):
        names = list_directory(path)
        if TOKENIZER in names:
            return _read_directory(path, TOKENIZER)
        if any(name.endswith(".gguf") for name in names):
            return gguf_tokenizer(GgufSource(path))
        found = [
            name for name in names if name in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
        ]
        hint = f"; {found[0]} is not read: convert it to {TOKENIZER}" if found else ""
        raise ModelFileError(f"{shown(path, limit=200)} holds no {TOKENIZER}{hint}")
    if path.endswith(".gguf"):
        source = open_weights(path)
        if not isinstance(source, GgufSource):
            raise ModelFileError(f"{shown(path, limit=200)} is no GGUF file")
        return gguf_tokenizer(source)
    folder, name = os.path.dirname(path) or os.curdir, os.path.basename(path)
    # A weight file says nothing of text; its tokenizer lies beside it.
    return _read_directory(folder, TOKENIZER if name.endswith(WEIGHT_FILES) else name)


def _read_directory(folder: str, name: str) -> Tokenizer:
    text = read_text(folder, name)
    if text is None:
        raise ModelFileError(f"cannot read {shown(os.path.join(folder, name), limit=200)}: no such file")
    config = read_json(folder, "tokenizer_config.json") or {}
    names = {role: _content(config.get(role)) for role in NAMED}
    for role, value in (read_json(folder, "special_tokens_map.json") or {}).items():
        if role in NAMED and names[role] is None:
            names[role] = _content(value)
    special = SpecialTokens(
        names={role: value for role, value in names.items() if value is not None},
        stops=_stops(folder),
        chat_template=_template(folder, config),
        add_bos=_truth(config.get("add_bos_token")),
        add_eos=_truth(config.get("add_eos_token")),
    )
    growth = check_tokenizer(text, name)
    backend = build(name, lambda: tokenizers.Tokenizer.from_str(text))
    return Tokenizer(backend, special, name=name, growth=growth)


def build(name: str, make: Callable[[], Built]) -> Built:
    """Call ``make`` (it builds, encodes or decodes); whatever the library says becomes one ModelFileError."""
    try:
        return make()
    except BaseException as error:
        # The library's own panics (a regular expression that tries too long) derive from BaseException; interrupts must pass.
        panic = type(error).__name__ == "PanicException"
        if isinstance(error, HeadcountError) or not (panic or isinstance(error, Exception)):
            raise
        raise ModelFileError(f"{shown(name)} is no tokenizer that can be used: {shown(str(error))}") from None


def _content(value: object) -> str | None:
    """A special token as configs spell it: a text, or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _stops(folder: str) -> frozenset[int]:
    """``eos_token_id`` of generation_config.json and config.json: one id or several."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        config = read_json(folder, name) or {}
        for part in (config, config.get("text_config")):
            ids = part.get("eos_token_id") if isinstance(part, dict) else None
            found.update(i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int)
    return frozenset(found)


def _template(folder: str, config: dict[str, Any]) -> str | None:
    """The chat template: its own file, else tokenizer_config.json's (``default`` when there are several)."""
    text = read_text(folder, "chat_template.jinja")
    if text is not None:
        return text
    for value in (
        config.get("chat_template"),
        (read_json(folder, "chat_template.json") or {}).get("chat_template"),
    ):
        if isinstance(value, list):
            named = [one for one in value if isinstance(one, dict) and one.get("name") == "default"]
            value = named[-1].get("template") if named else None
        if isinstance(value, str):
            return value
    return None
