"""Every known server is told by what it says, every other is refused with what it said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_servers import (
    LLAMA_CPP_PYTHON,
    LLAMA_SERVER,
    NOT_FOUND,
    SGLANG,
    SGLANG_INFO,
    VLLM,
    VLLM_METRICS,
    Fake,
    answer,
    routes,
)

from headcount.errors import HeadcountError
from headcount.verify.servers.attach import attach
from headcount.verify.servers.http import Patience, ServerError
from headcount.verify.servers.server import LiveServer, Usage
from headcount.verify.servers.vllm import usable_blocks

QUICK = Patience(connect=1.0, read=0.5, total=1.0)


def served(table: dict[str, bytes]) -> tuple[LiveServer, Usage]:
    with Fake(routes(table)) as fake:
        server = attach(fake.url, patience=QUICK)
        return server, server.usage()


def test_vllm() -> None:
    """The figures are those of the start-up log that was recorded with the answers."""
    server, usage = served(VLLM)
    found = server.observation
    assert server.words == "vLLM 0.32.0"
    assert (found.engine, found.engine_version, found.model) == ("vllm", "0.32.0", "/models/small-llama")
    assert (found.block_size, found.num_gpu_blocks, found.max_model_len) == (128, 364, 2048)
    assert (found.kv_cache_tokens, found.max_concurrency, found.kv_cache_memory_gib) == (46_592, 22.75, 1.0)
    assert ("enable-prefix-caching", "true") in found.arguments
    assert usable_blocks(found) == 363
    assert usage == Usage(running=0, waiting=0, fraction=0.0, preemptions=0)


def test_vllm_without_statistics_and_of_an_old_release() -> None:
    server, usage = served({**VLLM, "/metrics": NOT_FOUND})
    assert server.observation.num_gpu_blocks is None and "no metrics" in server.observation.notes
    assert usage == Usage()
    old = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
    server, usage = served({**VLLM, "/metrics": answer(old, "text/plain")})
    found = server.observation
    assert (found.block_size, found.num_gpu_blocks, found.kv_cache_tokens) == (16, 100, None)
    assert (usage.fraction, usage.running) == (0.5, None)


def test_vllm_of_several_engines() -> None:
    text = "".join(
        f'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="{1000 + rank}"}} 1.0\n'
        f'vllm:num_requests_running{{engine="{rank}"}} {rank}.0\nvllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank}\n'
        for rank in (1, 2)
    )
    server, usage = served({**VLLM, "/metrics": answer(text, "text/plain")})
    assert (server.observation.data_parallel, server.observation.num_gpu_blocks) == (2, 1001)
    assert "1001, 1002" in server.observation.notes
    assert (usage.running, usage.fraction) == (3, 0.2)


def test_an_adapter_is_not_the_model() -> None:
    cards = [
        {"id": "lora", "owned_by": "vllm", "parent": "base", "root": "/lora"},
        {"id": "base", "owned_by": "vllm", "parent": None, "root": "org/base", "max_model_len": 10},
    ]
    server, _ = served({**VLLM, "/v1/models": answer(json.dumps({"data": cards}))})
    assert (server.model, server.observation.model) == ("base", "org/base")


def test_sglang() -> None:
    server, usage = served(SGLANG)
    found = server.observation
    assert server.words == "SGLang 0.5.23"
    assert (found.engine, found.engine_version, found.model) == (
        "sglang",
        "0.5.23",
        SGLANG_INFO["model_path"],
    )
    assert (found.tensor_parallel, found.data_parallel, found.block_size) == (2, 2, 1)
    assert (found.kv_cache_tokens, found.kv_cache_memory_gib, found.weights_gib) == (431_234, 26.321, 7.6)
    assert (found.gpu_memory_utilization, found.max_model_len, found.max_num_seqs) == (0.83, 131_072, 2048)
    assert dict(found.arguments)["disable-radix-cache"] == "true"
    assert "must-not-be-kept" not in repr(found)
    assert server.slots == 4096
    # 3 on each of two data-parallel ranks; tensor-parallel ranks and priorities repeat them.
    assert usage == Usage(running=6, waiting=1, fraction=0.5, preemptions=7)


def test_sglang_by_its_older_endpoint_and_without_metrics() -> None:
    table = {
        **SGLANG,
        "/get_server_info": SGLANG["/server_info"],
        "/server_info": NOT_FOUND,
        "/metrics": NOT_FOUND,
    }
    server, usage = served(table)
    assert server.observation.kv_cache_tokens == 431_234
    assert usage == Usage()
    with pytest.raises(ServerError, match="neither /server_info nor"):
        served({"/v1/models": SGLANG["/v1/models"]})


def test_llama_server() -> None:
    server, usage = served(LLAMA_SERVER)
    found = server.observation
    assert server.words == "llama-server b6000-abcdef01"
    assert (found.engine, found.model, found.max_model_len, found.max_num_seqs) == (
        "llama.cpp",
        "/models/a.gguf",
        4 * 4096,
        4,
    )
    assert (found.engine_version, server.longest) == ("b6000", 4096)
    assert (server.slots, usage) == (4, Usage(running=3, waiting=2))
    slots = answer(json.dumps([{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]))
    _, usage = served({**LLAMA_SERVER, "/metrics": answer({}, status="501 Not Implemented"), "/slots": slots})
    assert usage == Usage(running=1)


def test_llama_cpp_python() -> None:
    server, usage = served(LLAMA_CPP_PYTHON)
    assert server.words == "llama-cpp-python 0.3.36"
    assert (server.observation.engine, server.model, server.slots) == ("llama.cpp", "/models/tiny.gguf", 1)
    assert usage == Usage()


def models(*cards: Any) -> dict[str, bytes]:
    return {"/v1/models": answer(json.dumps({"object": "list", "data": cards}))}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "none of vLLM, SGLang.*answers 404.*'uvicorn'"),
        (models({"id": "gpt", "owned_by": "openai"}), "none of.*owned by 'openai'"),
        (models({"id": "gpt", "owned_by": "me"}), "none of.*owned by 'me'"),
        (models({"id": "gpt"}), "owned by 'nobody'"),
        (models(), "lists no model"),
        (models(1, 2), "lists no model"),
        (models({"owned_by": "vllm"}), "without a name"),
        ({"/v1/models": answer("[]")}, "lists no model"),
        ({"/v1/models": answer("<html>", "text/html")}, "not JSON .text/html"),
        ({"/v1/models": answer({}, status="401 Unauthorized")}, "wants an API key .401.*--api-key-env"),
        ({"/v1/models": answer({}, status="503 Service Unavailable")}, "not ready"),
        ({**VLLM, "/version": answer("x", status="500 Oh")}, "version answers 500"),
        (
            {
                **VLLM,
                "/v1/models": models({"id": "m", "owned_by": "vllm", "max_model_len": -1})["/v1/models"],
            },
            "max_model_len is -1",
        ),
        (
            {
                **VLLM,
                "/metrics": answer(
                    VLLM_METRICS.partition(b"\r\n\r\n")[2].replace(b'="364"', b'="1e9"'), "text/plain"
                ),
            },
            "num_gpu_blocks is '1e9'",
        ),
        (
            {**SGLANG, "/server_info": answer({**SGLANG_INFO, "max_total_num_tokens": 1e300})},
            "max_total_num_tokens is 1e",
        ),
        (
            {**SGLANG, "/server_info": answer({**SGLANG_INFO, "mem_fraction_static": 7})},
            "mem_fraction_static is 7",
        ),
        ({**LLAMA_SERVER, "/props": answer({"total_slots": "many"})}, "total_slots is 'many'"),
        ({"/v1/models": LLAMA_SERVER["/v1/models"]}, "no /props"),
    ],
)
def test_refused(table: dict[str, bytes], says: str) -> None:
    with pytest.raises(HeadcountError, match=says) as caught:
        served(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("table", [VLLM, SGLANG, LLAMA_SERVER])
def test_a_cache_fuller_than_full_is_not_possible(table: dict[str, bytes]) -> None:
    text = "vllm:kv_cache_usage_perc 1.5\nsglang:token_usage 1.5\nllamacpp:kv_cache_usage_ratio 1.5\n"
    with pytest.raises(ServerError, match=r"1.5 times full"):
        served({**table, "/metrics": answer(text, "text/plain")})
