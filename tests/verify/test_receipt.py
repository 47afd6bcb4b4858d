"""From a pasted log to a receipt, to a calibration, to a plan that uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError, UsageError
from headcount.spec.reader import read_model
from headcount.verify.observation import Observation
from headcount.verify.receipt import find_model, make_receipt

# vLLM 0.19.0, Qwen2.5-7B-Instruct, one H100 80GB (llm-d-planner pull request 205): the figures as it prints them.
START = """\
(EngineCore_DP0 pid=101) INFO 04-10 09:00:01 [core.py:101] Initializing a V1 LLM engine (v0.19.0) with config: \
model='Qwen/Qwen2.5-7B-Instruct', tensor_parallel_size=1, pipeline_parallel_size=1, max_seq_len=8192, kv_cache_dtype=auto
(EngineCore_DP0 pid=101) INFO 04-10 09:00:21 [gpu_model_runner.py:4130] Model loading took 14.25 GiB memory and 5.1 seconds
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [gpu_worker.py:378] Available KV cache memory: 58.53 GiB
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [kv_cache_utils.py:1314] GPU KV cache size: 1,096,000 tokens
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [kv_cache_utils.py:1319] Maximum concurrency for 8,192 tokens per request: 133.79x
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    path.write_text(START)
    return path


def verified(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert dispatch(["verify", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_log_beside_its_prediction(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(capsys, "--log", str(log), "--gpu", "h100-80gb")["starts"][0]
    terms = {(term["quantity"], term["check"]): term for term in found["terms"]}
    assert abs(terms["tokens", "tokens_from_kv_memory"]["relative_error"]) < 0.0005
    assert abs(terms["weights", "weights"]["relative_error"]) < 0.01
    # A conversation of 8,192 tokens takes 512 blocks of the pool's 68,500, one of which is never given out.
    assert found["conversations"] == 133
    assert found["rests_on"] == "the reported capacity"


def test_shorter_conversations(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--context", "2048")["starts"][0]
    assert found["conversations"] == 1_096_000 // 2048 - 0
    longer = verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--context", "9000")["starts"][0]
    assert longer["conversations"] is None and "at most 8,192" in longer["rests_on"]


def test_a_calibration_is_used_and_named(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "mine.json")
    verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--save", saved)
    question = "fit qwen2.5-7b --gpu h100-80gb --context 8192 --engine-version 0.19.0 --json"
    assert dispatch([*question.split(), "--calibration", saved]) == 0
    plan = json.loads(capsys.readouterr().out)
    weights = plan["per_gpu"]["weight_bytes"] + sum(
        count for name, count in plan["per_gpu"]["overhead_bytes"].items() if "absorbed" in name
    )
    if plan["model"]["name"] == json.loads(Path(saved).read_text())["model"]:
        assert weights == round(14.25 * 2**30)
    assert any(saved in warning for warning in plan["warnings"])


def test_a_log_on_standard_input(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert verified(capsys, "--log", "-", "--gpu", "h100-80gb")["starts"][0]["conversations"] == 133


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "nobody/nothing", "https://evil.example/x"])
def test_a_name_in_a_log_opens_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is read and no network asked for a model that a log names."""
    import socket

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    path = tmp_path / "start.log"
    path.write_text(START.replace("Qwen/Qwen2.5-7B-Instruct", name))
    with pytest.raises(HeadcountError, match=r"not in the catalogue|does not name"):
        dispatch(["verify", "--log", str(path)])


BAD = [
    ("verify", "give one of --log FILE and --url URL"),
    ("verify --log a --url b", "give one of"),
    ("verify --log missing.log", "No such file"),
    ("verify --log . ", "Is a directory"),
    ("verify --log a --load 3", "--load needs a running server"),
    ("verify --url ftp://127.0.0.1", "http"),
    ("verify --url http://127.0.0.1:1 --api-key-env NOT_SET_HERE", "no such environment variable"),
]


@pytest.mark.parametrize(("command", "words"), BAD)
def test_bad_questions(command: str, words: str) -> None:
    with pytest.raises(HeadcountError, match=words) as raised:
        dispatch(command.split())
    assert "\n" not in str(raised.value)


def test_a_file_without_start_up_lines(tmp_path: Path) -> None:
    path = tmp_path / "noise.log"
    path.write_text("nothing here\n" * 100)
    with pytest.raises(UsageError, match=r"no engine.s start-up lines"):
        dispatch(["verify", "--log", str(path)])


def receipt(observation: Observation, model: str, **more: Any) -> Any:
    return make_receipt(observation, read_model(model), **more)


def test_what_explains_a_gap_moved_the_cache_that_way() -> None:
    """Weights 2 GiB larger than predicted explain a smaller cache, never a larger one."""
    start: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.19.0",
        "gpu": "H100 80GB",
        "gpu_memory_utilization": 0.9,
        "max_model_len": 8192,
        "kv_cache_dtype": "bf16",
        "weights_gib": 16.25,
    }
    smaller = receipt(Observation(**start, kv_cache_memory_gib=52.5), "qwen2.5-7b")
    assert smaller.explains.startswith("weights took 2.00 GiB more than predicted, of a gap of ")
    larger = receipt(Observation(**start, kv_cache_memory_gib=58.0), "qwen2.5-7b")
    assert "in terms that the log does not print" in larger.explains


def test_a_print_of_two_decimals_is_not_another_model() -> None:
    """0.12 GB of keys and values are 20,480 tokens or up to 4 % more: SGLang prints no more decimals."""
    small = Observation(
        engine="sglang",
        engine_version="0.5.11",
        tensor_parallel=1,
        kv_cache_dtype="bfloat16",
        kv_cache_memory_gib=0.24,
        kv_cache_tokens=20_600,
        max_model_len=4096,
    )
    assert "is it this model" not in receipt(small, "qwen2.5-0.5b").explains
    wrong = small.replace(kv_cache_tokens=30_000)
    assert "is it this model" in receipt(wrong, "qwen2.5-0.5b").explains


def test_a_server_of_slots() -> None:
    """The cache is as large as its context asks: nothing left over to compare, and cells come from its bytes if unsaid."""
    start = Observation(engine="llama.cpp", date="2026-06-01", kv_cache_memory_gib=1.0, gpu="RTX 4090")
    found = receipt(start, "llama-3.1-8b", context=4096)
    assert not any(line.check == "end_to_end" for line in found.lines)
    # 1 GiB of f16 at 131,072 B a token.
    assert (found.held, found.holds_why) == (1, "its 1 slot and 8,192 cells")
    mixed = start.replace(kv_cache_dtype="K q8_0, V q4_0", kv_cache_tokens=8192, kv_cache_memory_gib=0.40625)
    (tokens,) = (
        line for line in receipt(mixed, "llama-3.1-8b").lines if line.check == "tokens_from_kv_memory"
    )
    # (34 + 18) / 64 of f16.
    assert tokens.predicted == 8192
    unknown = receipt(start.replace(weights_gib=4.6), "llama-3.1-8b")
    weights = next(line for line in unknown.lines if line.quantity == "weights")
    assert weights.predicted is None and "mix of the GGUF file" in weights.reason


@pytest.mark.parametrize(
    ("logged", "name"),
    [
        ("Meta Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("Gemma 3 270m", "gemma-3-270m"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_a_logged_name_finds_its_catalogue_entry(logged: str, name: str) -> None:
    assert find_model(Observation(engine="llama.cpp", model=logged), None).name == name


def test_a_cache_that_is_allocated_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TensorRT-LLM 1.2 profiles with a small cache and allocates the real one; each has its own window (a public log)."""
    lines = []
    for window, blocks, gib in ((8224, 257, "0.56"), (9193, 1444, "3.17")):
        lines += [
            f"[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 288 [window size={window}], tokens per block=32, "
            f"primary blocks={blocks}, secondary blocks=0, max sequence length=9193",
            f"[TensorRT-LLM][INFO] [MemUsageChange] Allocated {gib} GiB for max tokens in paged KV cache "
            f"({blocks * 32}).",
        ]
    log = tmp_path / "trt.log"
    log.write_text("\n".join(["[TensorRT-LLM] TensorRT LLM version: 1.2.0", *lines, ""]))
    found = verified(capsys, "--log", str(log), "--model", "qwen3-8b", "--kv", "fp8")["starts"][0]
    reported = {term["quantity"]: term["reported"] for term in found["terms"]}
    assert (reported["blocks"], reported["tokens"]) == (1444, 46_208)
    assert found["max_model_len"] == 9193 and found["conversations"] == 5


def test_sglang_shares_what_was_free_before_the_weights() -> None:
    """Qwen3.5-9B, TP 2, two RTX 4090 (a public log of 2026-04-14): KV 5.00 and states 4.48 GiB of 22.93 x 0.8 - 8.85."""
    start = Observation(
        engine="sglang",
        engine_version="0.5.10",
        gpu="RTX 4090",
        tensor_parallel=2,
        gpu_memory_utilization=0.8,
        kv_cache_dtype="bfloat16",
        weights_gib=8.85,
        free_before_gib=22.93,
        kv_cache_memory_gib=5.0,
        states_gib=4.48,
        max_model_len=262144,
    )
    found = {line.check: line for line in receipt(start, "qwen3.5-9b").lines}
    assert found["balance"].reported == found["end_to_end"].reported == pytest.approx(9.48)
    assert found["balance"].predicted == pytest.approx(9.494, abs=0.001)
    newer = {line.check: line for line in receipt(start.replace(engine_version="0.5.20"), "qwen3.5-9b").lines}
    assert newer["balance"].predicted == pytest.approx(9.494 - 0.098, abs=0.001)


def test_a_pool_without_a_rule_leaves_the_other_figures() -> None:
    """DeepSeek-V4's pools in SGLang are not modelled; its weights are compared all the same."""
    start = Observation(
        engine="sglang",
        engine_version="0.5.23",
        gpu="H200",
        tensor_parallel=8,
        weights_gib=20.0,
        kv_cache_memory_gib=60.0,
        kv_cache_tokens=1_000_000,
    )
    found = {line.check: line for line in receipt(start, "deepseek-v4-flash").lines}
    assert found["weights"].predicted is not None
    assert found["tokens_from_kv_memory"].predicted is None and found["tokens_from_kv_memory"].reason


# A server of vLLM 0.6.3, which reads prompts whole, at its default of 8,192 batched tokens for requests of that length.
WHOLE_PROMPTS = """\
INFO 10-12 08:00:01 api_server.py:528] vLLM API server version 0.6.3
INFO 10-12 08:00:10 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=8192, \
tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto, chunked_prefill_enabled=False
INFO 10-12 08:00:20 model_runner.py:1067] Loading model weights took 14.9888 GB
INFO 10-12 08:00:22 gpu_executor.py:122] # GPU blocks: 27870, # CPU blocks: 2048
"""


def test_a_server_that_reads_prompts_whole_holds_shorter_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """27,870 blocks of 16 tokens hold 108 conversations of 4,096; the server's longest request stays 8,192."""
    path = tmp_path / "old.log"
    path.write_text(WHOLE_PROMPTS)
    found = verified(capsys, "--log", str(path), "--gpu", "h100-80gb", "--context", "4096")["starts"][0]
    assert found["conversations"] == 108


def test_what_the_log_says_otherwise_is_told(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "h100-80gb", "--tp", "4", "--utilization", "0.8")
    taken = " ".join(verified(capsys, "--log", str(log), *words)["starts"][0]["notes"])
    assert "the log says TP 1; 4 is compared, as asked" in taken
    # The log does not say its utilization, so that nothing is overruled.
    assert "utilization" not in taken
    alone = verified(capsys, "--log", str(log), "--gpu", "h100-80gb")["starts"][0]["notes"]
    assert not any("as asked" in note for note in alone)


def test_a_default_utilization_is_saved_where_the_log_shows_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``non-default args`` without a utilization is vLLM's 0.9; a log without that line says nothing of it."""
    shown = "INFO 08-05 10:00:00 [cli_args.py:261] non-default args: {'model': 'Qwen/Qwen2.5-7B-Instruct'}\n"
    for text, utilization in ((START, None), (shown + START, 0.9)):
        path, saved = tmp_path / "start.log", tmp_path / "mine.json"
        path.write_text(text)
        verified(capsys, "--log", str(path), "--gpu", "h100-80gb", "--save", str(saved))
        assert json.loads(saved.read_text()).get("utilization") == utilization


def test_a_release_after_a_release_is_saved_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, saved = tmp_path / "start.log", tmp_path / "mine.json"
    path.write_text(
        WHOLE_PROMPTS.replace("v0.6.3", "v0.6.3.post1").replace("version 0.6.3", "version 0.6.3.post1")
    )
    verified(capsys, "--log", str(path), "--gpu", "h100-80gb", "--save", str(saved))
    assert json.loads(saved.read_text())["engine_version"] == "0.6.3.post1"


def test_engines_side_by_side_hold_their_sum(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data parallelism: each of two engines prints the 68,500 blocks of its own cache."""
    shown = "INFO [cli_args.py:261] non-default args: {'model': 'Qwen/Qwen2.5-7B-Instruct', 'data_parallel_size': 2}\n"
    log.write_text(shown + START)
    found = verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--context", "4096")["starts"][0]
    assert found["conversations"] == 2 * 267
    assert found["rests_on"] == "the reported capacity of each of 2 engines"


def test_slots_that_may_share_one_cache() -> None:
    """llama-server prints the context of one slot: 4 of 8,192 tokens are 32,768 cells, or 8,192 that they share."""
    server = Observation(
        engine="llama.cpp",
        engine_version="b6500",
        max_model_len=4 * 8192,
        max_num_seqs=4,
        notes="whether slots share one cache is not said",
    )
    whole = receipt(server, "llama-3.1-8b", context=8192)
    assert (whole.held, whole.held_low, whole.held_high) == (4, 1, 4)
    short = receipt(server, "llama-3.1-8b", context=2048)
    assert (short.held, short.held_low, short.held_high) == (4, 4, 4)


def test_a_log_without_a_term_that_plans_use_saves_nothing(tmp_path: Path) -> None:
    path, saved = tmp_path / "start.log", tmp_path / "mine.json"
    path.write_text(
        "llama_context: n_ctx = 8192\n"
        "llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB\n"
    )
    words = ["--log", str(path), "--model", "llama-3.1-8b", "--gpu", "h100-80gb", "--save", str(saved)]
    with pytest.raises(UsageError, match=r"prints no term that a plan of llama.cpp takes over"):
        dispatch(["verify", *words])
    assert not saved.exists()


def test_gaps_of_very_many_starts_are_not_all_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.log"
    path.write_text("".join(START.replace("1,096,000", f"{300_000 + 16 * i:,}") for i in range(12)))
    document = verified(capsys, "--log", str(path), "--gpu", "h100-80gb")
    assert len(document["starts"]) == 12
    assert "gaps are explained for the first 8 of 12 starts only" in document["refused"]
