"""Tokenizers: ids equal the reference's on texts of every kind, and texts come back letter by letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_files import gemma3, minilm, smollm2
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from headcount.errors import HeadcountError, ModelFileError, OperandError, UnsupportedModelError
from headcount.transformer.weights.gguf_file import GgufSource
from headcount.transformer.weights.gguf_tokenizer import PATTERNS, gguf_tokenizer
from headcount.transformer.weights.tokenizer import Tokenizer, read_tokenizer

TEXTS = [
    "", " ", "  two  blanks ", "\n\n\t x\r\n", "Hello world", "don't DON'T we'll I'M", "naïve café Ünïcödé",
    "日本語のテキスト。中文测试 한국어", "Привет мир مرحبا שלום",
    "😀😃👨‍👩‍👧‍👦🏳️‍🌈 emoji\u200d", "e\u0301 \u00a0 \u3000 ﬁ Ａ 𝔘 ½ Ⅷ",
    "def f(x):\n    return x + 1\n\n\n# done\n\tif a<b: pass", "for (int i=0;i<10;++i) { a[i] = b[i]*2; }",
    "1 12 123 4,567.89 0x1F 1e10", "https://x.org/?q=1&b=%20", "<|im_start|>user\nhi<|im_end|>\n", "<h1>Title</h1><br>",
    "<start_of_turn>user\nhi<end_of_turn>", "a      b          c", "\x00\x01\x7f", "ends \n ",
]  # fmt: skip


def trained(alphabet: str = "byte") -> Backend:
    """A small byte-level tokenizer, trained on this file."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([Path(__file__).read_text()], trainer)
    return backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    trained().save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
                "add_bos_token": True,
                "chat_template": "{{ 1 }}",
            }
        )
    )
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    return made


@pytest.fixture(scope="module")
def small(folder: Path) -> Tokenizer:
    return read_tokenizer(str(folder))


def test_special_tokens_stops_and_template(small: Tokenizer) -> None:
    assert (small.bos, small.eos, small.stops) == (0, 1, {1, 7})
    assert small.names == {"bos_token": "<s>", "eos_token": "</s>"}
    assert small.chat_template == "{{ 1 }}"
    assert small.encode("a")[0] == 0 and small.encode("a", special=False) == small.encode("a")[1:]
    assert small.decode([0, *small.encode("a", special=False), 1]) == "a"
    assert small.decode([0, 1], special=True) == "<s></s>"
    assert small.token(0) == "<s>" and small.token_id("<s>") == 0
    assert small.token(10**6) is None and small.token_id("no such token") is None


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = tokenizer.detokeniser()
    pieces = [stream.push(token) for token in ids]
    assert all("\ufffd" not in piece[-1:] for piece in pieces)
    return "".join(pieces) + stream.flush()


@given(st.text())
def test_text_comes_back_whole_and_streamed(small: Tokenizer, text: str) -> None:
    ids = small.encode(text, special=False)
    assert small.decode(ids, special=True) == text
    assert streamed(small, ids) == small.decode(ids)


@given(st.lists(st.integers(0, 599), max_size=30))
def test_any_ids_stream_to_what_they_decode_to(small: Tokenizer, ids: list[int]) -> None:
    stream = small.detokeniser()
    assert "".join(map(stream.push, ids)) + stream.flush() == small.decode(ids)


def test_a_character_is_held_back_until_it_is_whole(small: Tokenizer) -> None:
    ids = small.encode("日", special=False)
    assert len(ids) == 3
    stream = small.detokeniser()
    assert [stream.push(token) for token in ids] == ["", "", "日"]
    assert stream.push(ids[0]) == "" and stream.flush() == "\ufffd" and stream.flush() == ""


def test_misuse_is_one_error(small: Tokenizer) -> None:
    with pytest.raises(OperandError, match="not valid Unicode"):
        small.encode("\ud800")
    with pytest.raises(OperandError, match="-1 is not a token id"):
        small.decode([-1])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "no tokenizer"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": "b"}}}', "no tokenizer"),
        ("tokenizer.json", "\ufffe", "no tokenizer"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", "[" * 100000, "not JSON"),
        ("tokenizer_config.json", '{"bos_token": "<absent>"}', "'<absent>' is not in the vocabulary"),
        ("generation_config.json", "nonsense", "not JSON"),
    ],
)
def test_damaged_files_are_one_error(
    folder: Path, tmp_path: Path, name: str, content: str, words: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelFileError, match=words) as caught:
        read_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"holds no tokenizer\.json"):
        read_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"tokenizer\.model is not read: convert it"):
        read_tokenizer(str(tmp_path))
    with pytest.raises(ModelFileError, match="no such file"):
        read_tokenizer(str(tmp_path / "absent.json"))


def changed_file(folder: Path, tmp_path: Path, **sections: Any) -> Path:
    """The small tokenizer with sections of its ``tokenizer.json`` replaced."""
    document = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **sections}))
    return tmp_path


def replaced(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


EXPANDING: dict[str, tuple[dict[str, Any], str]] = {
    "thousands": ({"normalizer": {"type": "Sequence", "normalizers": [replaced("e" * 1000, String="e")] * 4}}, "64 are read"),
    "product": ({"normalizer": {"type": "Sequence", "normalizers": [replaced("e" * 60, String="e")] * 4}}, "letters of one"),
    "between": ({"normalizer": {"type": "Sequence", "normalizers": [replaced("e", Regex="")] * 13}}, "letters of one"),
    "nested": ({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Sequence", "normalizers": [replaced("e" * 60, String="e")] * 2}] * 2}}, "letters of one"),
    "decoder": ({"decoder": {"type": "Sequence", "decoders": [replaced("x" * 60, Regex=".")] * 4}}, "letters of one"),
    "bytes": ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 20}}, "letters of one"),
    "prepend": ({"normalizer": {"type": "Prepend", "prepend": "x" * 20_000_000}}, "20,000,000 letters"),
    "steps": ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 99}}, "more than 64 steps"),
    "many steps": ({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 9}] * 9}}, "more than 64 steps"),
    "pieces": ({"post_processor": {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 300_000,
        "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}}, "300,000 entries"),
    "token": ({"added_tokens": [{"id": 0, "content": "<s>" * 9999}]}, "token of 29,997 letters"),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPANDING)
def test_what_would_grow_is_refused_before_it_is_built(folder: Path, tmp_path: Path, case: str) -> None:
    sections, words = EXPANDING[case]
    with pytest.raises(ModelFileError, match=words):
        read_tokenizer(str(changed_file(folder, tmp_path, **sections)))


def test_a_setting_given_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    text = (folder / "tokenizer.json").read_text().rstrip()
    (tmp_path / "tokenizer.json").write_text(text[:-1] + ', "normalizer": null}')
    with pytest.raises(ModelFileError, match="given twice"):
        read_tokenizer(str(tmp_path))


def test_what_the_library_says_while_it_encodes_is_one_error(folder: Path, tmp_path: Path) -> None:
    """A regular expression that gives up is a panic (no ``Exception``), a word without a token an ``Exception``."""
    split = {
        "type": "Split", "pattern": {"Regex": "(l+)+(l+)+(l+)+z"}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    slow = read_tokenizer(str(changed_file(folder, tmp_path, pre_tokenizer=split)))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json.*retry-limit"):
        slow.encode("l" * 40)
    words = {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1}, "unk_token": "absent"}
    poor = read_tokenizer(str(changed_file(folder, tmp_path, model=words, added_tokens=[])))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json.*UNK"):
        poor.encode("Hello")


def test_the_largest_id_is_told(folder: Path, tmp_path: Path, small: Tokenizer) -> None:
    assert small.largest_id == small.vocab_size - 1
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
    (tmp_path / "x").mkdir()
    found = read_tokenizer(str(changed_file(folder, tmp_path / "x", model=words, added_tokens=[])))
    assert (found.vocab_size, found.largest_id) == (2, 4_000_000_000)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_weight_file_is_read_with_the_tokenizer_beside_it(
    folder: Path, small: Tokenizer, name: str
) -> None:
    assert read_tokenizer(str(folder / name)).encode("Hello") == small.encode("Hello")


def vocabulary_file(path: Path, **changed: Any) -> GgufSource:
    """A GGUF file that holds the vocabulary of a trained tokenizer."""
    np = pytest.importorskip("numpy")
    from gguf_writer import small_file

    document = json.loads(trained().to_str())["model"]
    tokens = sorted(document["vocab"], key=document["vocab"].get)
    keys = {
        "model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [3, 3] + [1] * (len(tokens) - 2),
        "merges": [" ".join(pair) for pair in document["merges"]], "bos_token_id": 0, "eos_token_id": 1,
    } | changed  # fmt: skip
    metadata = {"tokenizer.ggml." + key: value for key, value in keys.items() if value is not None}
    small_file(path, {"a": np.zeros(1, np.float32)}, metadata)
    return GgufSource(str(path))


@pytest.mark.reference
def test_a_vocabulary_in_gguf_is_the_same_tokenizer(tmp_path: Path, small: Tokenizer) -> None:
    ours = gguf_tokenizer(vocabulary_file(tmp_path / "x.gguf"))
    for text in TEXTS:
        assert ours.encode(text) == small.encode(text, special=False)
    begun = gguf_tokenizer(vocabulary_file(tmp_path / "y.gguf", add_bos_token=True, add_eos_token=True))
    assert begun.encode("a") == [0, *small.encode("a", special=False), 1]


@pytest.mark.reference
@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model": "bert"}, UnsupportedModelError, "'bert' is not supported; known: gpt2, llama"),
        ({"pre": "gpt-3"}, UnsupportedModelError, "'gpt-3' is not supported; nearest: gpt-2"),
        ({"merges": None}, ModelFileError, "no tokenizer.ggml.merges"),
        ({"tokens": None}, ModelFileError, "no tokenizer.ggml.tokens"),
        ({"merges": ["onlyone"]}, ModelFileError, "not two tokens"),
        ({"merges": ["absent pair"]}, ModelFileError, "no tokenizer that can be used"),
        ({"bos_token_id": 10**6}, ModelFileError, "is not one of"),
        ({"add_bos_token": 3}, ModelFileError, "neither true nor false"),
        ({"token_type": [1]}, ModelFileError, "token types"),
        ({"model": "llama"}, HeadcountError, "one score each"),
    ],
)
def test_a_wrong_vocabulary_is_one_error(
    tmp_path: Path, changed: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gguf_tokenizer(
            vocabulary_file(
                tmp_path / "x.gguf", **({"merges": None} if changed.get("model") == "llama" else {}) | changed
            )
        )


@pytest.mark.reference
@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_word_patterns_cut_as_the_reference_does(pre: str) -> None:
    """Our patterns against transformers' own table of them."""
    from tokenizers import Regex
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    (pattern,) = PATTERNS[pre]
    ours = pre_tokenizers.Split(Regex(pattern), "isolated")
    theirs = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")

    @settings(max_examples=300)
    @given(st.one_of(st.text(), st.text("aBcé 1२\n\r\t'sSlL.,/😀日ǅ", max_size=30)))
    def check(text: str) -> None:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)

    check()


@pytest.mark.reference
def test_minilms_ids_are_transformers_ids() -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(minilm()), read_tokenizer(minilm())
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)


@pytest.mark.reference
@pytest.mark.slow
def test_smollm2s_ids() -> None:
    """Transformers' GGUF reader does not cut digits apart (its table lacks ``smollm``), so texts with digits are compared
    with what llama.cpp gives (llama-cpp-python 0.3.36, vocabulary only, special tokens parsed)."""
    from transformers import AutoTokenizer

    path = Path(smollm2())
    theirs, ours = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), read_tokenizer(str(path))
    for text in TEXTS:
        if not any(letter.isnumeric() for letter in text):
            assert ours.encode(text) == theirs.encode(text), text
        assert streamed(ours, ours.encode(text)) == ours.decode(ours.encode(text))
    assert ours.encode("Hello  world 1234  5") == [19556, 216, 905, 216, 33, 34, 35, 36, 256, 37]
    assert ours.encode("x=1;y  2") == [104, 45, 33, 43, 105, 256, 34]
    assert ours.stops == {0, 2} and ours.bos == 1 and "<|im_start|>" in (ours.chat_template or "")


@pytest.mark.reference
@pytest.mark.slow
def test_gemma3s_ids(tmp_path_factory: pytest.TempPathFactory) -> None:
    from transformers import AutoTokenizer

    path = Path(gemma3(tmp_path_factory))
    theirs, ours = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), read_tokenizer(str(path))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
        assert streamed(ours, ours.encode(text)) == ours.decode(ours.encode(text))
    assert ours.stops == {1, 106} and ours.bos == 2
