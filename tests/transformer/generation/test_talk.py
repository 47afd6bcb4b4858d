"""Turns of a chat over one cache: each reply is that of the whole chat read anew, and only new tokens are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_checkpoint import save_small_checkpoint

from headcount.errors import CacheFullError, UsageError
from headcount.transformer.generation.host import Host
from headcount.transformer.generation.reply import STOP_STRING, Asked
from headcount.transformer.generation.sampling import Sampling
from headcount.transformer.generation.talk import Talk
from headcount.transformer.generation.uncached import generate_uncached
from headcount.transformer.weights.chat import render
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import read_tokenizer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(save_small_checkpoint(tmp_path_factory.mktemp("small")))
    return load_model(folder, dtype=torch.float32), read_tokenizer(folder)


def reply_to(talk: Talk, text: str, asked: Asked) -> Any:
    reply = talk.say(text, asked)
    shown = "".join(piece for _, piece in talk.host.stream())
    talk.heard(reply)
    assert shown == reply.text
    return reply


# Letters only: what the random network writes is then tokenised as it was written.
DRAWN = Sampling(temperature=1.0, seed=2)


def test_every_reply_is_that_of_the_chat_read_anew(small: Any) -> None:
    model, words = small
    host = Host(model, tokenizer=words, kv="fp32")
    talk = Talk(host, words, system="Be brief.")
    asked = Asked(limit=16, sampling=DRAWN)
    said: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for text in ("One river?", "Another.", "And a third, with its length?"):
        said.append({"role": "user", "content": text})
        whole = words.encode(render(words.chat_template, said, names=words.names), special=False)
        reply = reply_to(talk, text, asked)
        assert reply.ids == list(generate_uncached(model.network, whole, asked))
        assert reply.text == words.decode(reply.ids)
        said.append({"role": "assistant", "content": reply.text})
    assert talk.messages == said and host.conversations == 1


def test_a_turn_reads_only_what_is_new(small: Any) -> None:
    """The text of replies cut by a stop string is tokenised as it was written up to there."""
    model, words = small
    talk = Talk(Host(model, tokenizer=words, kv="fp32"), words)
    one = reply_to(talk, "One river?", Asked(limit=1))
    held = talk.conversation
    two = talk.say("Another.", Asked(limit=1))
    if words.encode(one.text, special=False) == one.ids:
        assert talk.conversation is held and two.conversation.length > 0
    assert len(two.waiting) < len(two.history)


def test_a_plain_text_goes_on(small: Any) -> None:
    model, words = small
    talk = Talk(Host(model, tokenizer=words, kv="fp32"), words, raw=True)
    asked = Asked(limit=9)
    one = reply_to(talk, "Once upon", asked)
    begin = words.encode("Once upon")
    assert begin[0] == words.bos
    assert one.ids == list(generate_uncached(model.network, begin, asked))
    two = talk.say(" a time", asked)
    assert two.conversation is one.conversation
    assert len(two.waiting) == 1 + len(" a time")
    for _ in talk.host.stream():
        pass
    whole = [*begin, *one.ids, *words.encode(" a time", special=False)]
    assert two.ids == list(generate_uncached(model.network, whole, asked))


def test_a_refused_turn_leaves_the_talk(small: Any) -> None:
    model, words = small
    probe = Host(model, tokenizer=words, kv="fp32")
    host = Host(model, tokenizer=words, kv="fp32", budget=probe.bytes_at(64))
    talk = Talk(host, words, raw=True)
    one = reply_to(talk, "Once upon", Asked(limit=9))
    messages, promised = list(talk.messages), host.promised_bytes
    with pytest.raises(CacheFullError):
        talk.say("a" * 80, Asked(limit=9))
    assert (talk.messages, host.promised_bytes) == (messages, promised)
    two = talk.say(" a time", Asked(limit=9))
    for _ in host.stream():
        pass
    assert two.ids == list(generate_uncached(model.network, two.history[: -len(two.ids)], Asked(limit=9)))
    assert two.history[: len(one.history)] == one.history


def test_a_talk_that_is_read_anew_gives_its_old_room_back(small: Any) -> None:
    """Room for one reading of the chat, not for two."""
    model, words = small
    probe = Host(model, tokenizer=words, kv="fp32")
    host = Host(model, tokenizer=words, kv="fp32", budget=probe.bytes_at(90))
    talk = Talk(host, words)
    reply_to(talk, "One river?", Asked(limit=8))
    # As if the reply had been tokenised otherwise than it was written.
    talk._read[5] += 1
    two = talk.say("Another.", Asked(limit=8))
    assert (len(two.waiting), host.conversations) == (len(two.history), 1)
    for _ in host.stream():
        pass
    talk.heard(two)
    talk._read[5] += 1
    with pytest.raises(CacheFullError):
        talk.say("b" * 80, Asked(limit=8))
    assert len(talk.messages) == 4 and host.promised_bytes == 0


def test_stop_strings_cut_the_text(small: Any) -> None:
    """Whatever pieces its bytes came in, the text ends before the first of them."""
    model, words = small
    free = reply_to(
        Talk(Host(model, tokenizer=words, kv="fp32"), words, raw=True),
        "Once",
        Asked(limit=40, sampling=DRAWN),
    ).text
    plain = [i for i in range(2, len(free) - 3) if "\ufffd" not in free[i : i + 2]]
    assert plain, "the random network wrote no plain text"
    stop = free[plain[0] : plain[0] + 2]
    host = Host(model, tokenizer=words, kv="fp32")
    cut = reply_to(
        Talk(host, words, raw=True),
        "Once",
        Asked(limit=40, sampling=DRAWN, stop_strings=(stop, "\x00nowhere")),
    )
    assert (cut.text, cut.ended) == (free[: free.index(stop)], STOP_STRING)
    assert len(cut.ids) < 40


def test_what_is_refused(small: Any, tmp_path: Any) -> None:
    model, words = small
    host = Host(model, tokenizer=words, kv="fp32")
    with pytest.raises(UsageError, match="the prompt is empty"):
        Talk(host, words).say("  \n", Asked())
    with pytest.raises(UsageError, match="chat template"):
        Talk(host, words, system="Be brief.", raw=True)
    plain = read_tokenizer(str(save_small_checkpoint(tmp_path, template=None)))
    assert Talk(host, plain).raw
