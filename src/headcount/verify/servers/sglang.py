"""SGLang's server: ``/server_info`` (older: ``/get_server_info``), ``/v1/models`` and, with ``--enable-metrics``, metrics.

``/server_info`` is the resolved launch configuration, with ``max_total_num_tokens`` of one scheduler, ``version`` and one
``internal_states`` entry for each data-parallel rank, whose ``memory_usage`` has weight and kvcache in GiB. It may hold
an ``api_key``: only the entries named here are read. Field names: the package sglang 0.5.23.
"""

from __future__ import annotations

import time

from headcount.verify.observation import Observation
from headcount.verify.servers.http import ServerError
from headcount.verify.servers.metrics import Sample, fetch_metrics, fullest
from headcount.verify.servers.server import LiveServer, Usage, count_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.verify.servers.http import Client

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_FRACTION = "sglang:token_usage"
_RETRACTED = ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total")
_WANTED = (_RUNNING, _WAITING, _FRACTION, *_RETRACTED)


class SglangServer(LiveServer):
    """See the module."""

    def usage(self) -> Usage:
        """Sums over data-parallel ranks; the fraction is that of the fullest."""
        samples = fetch_metrics(self.client, _WANTED)
        if samples is None:
            return Usage()
        retracted = [_ranks(samples, name) for name in _RETRACTED]
        return Usage(
            running=_ranks(samples, _RUNNING),
            waiting=_ranks(samples, _WAITING),
            fraction=fullest(samples, (_FRACTION,), self.client.address.words()),
            preemptions=next((count for count in retracted if count is not None), None),
        )

    def request(self, prompt: list[int] | str, reply_tokens: int) -> dict[str, Any]:
        """``ignore_eos`` keeps a reply from ending early; usage in every chunk counts tokens, not chunks."""
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": reply_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }


def _ranks(samples: list[Sample], name: str) -> int | None:
    """Sum over data-parallel ranks. Tensor-parallel ranks repeat a figure; a labelled priority is part of the whole."""
    by_rank: dict[str, float] = {}
    for sample in samples:
        if sample.name == name and not sample.labels.get("priority"):
            rank = sample.labels.get("dp_rank", "")
            by_rank[rank] = max(by_rank.get(rank, 0.0), sample.value)
    return round(sum(by_rank.values())) if by_rank else None


def attach_sglang(client: Client, card: dict[str, Any]) -> SglangServer:
    """Read what an SGLang server says. Raises ServerError where it has no server info or says something impossible."""
    server = SglangServer(
        client, words="SGLang", model=str(card["id"]), observation=Observation(engine="sglang")
    )
    where = client.address.words()
    info = server.get_json("/server_info")
    if info is None:
        info = server.get_json("/get_server_info")
    if not isinstance(info, dict):
        raise ServerError(
            f"{where}: SGLang by its models, but it has neither /server_info nor /get_server_info"
        )
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}

    def count(name: str) -> int | None:
        return count_of(info.get(name), where=f"{where}: {name}")

    at_once = state.get("effective_max_running_requests_per_dp")
    seqs = count_of(at_once, where=f"{where}: effective_max_running_requests_per_dp") or count(
        "max_running_requests"
    )
    parallel = count("dp_size") or 1
    version = text_of(info.get("version"))
    server.words = f"SGLang {version}" if version else "SGLang of an unstated version"
    server.slots = seqs * parallel if seqs else None
    server.observation = Observation(
        engine="sglang",
        id=where,
        source_url=where,
        date=time.strftime("%Y-%m-%d"),
        engine_version=version,
        model=text_of(info.get("model_path")) or server.model,
        tensor_parallel=count("tp_size"),
        pipeline_parallel=count("pp_size"),
        data_parallel=parallel if parallel > 1 else None,
        weight_dtype_or_quant=text_of(info.get("quantization")) or text_of(info.get("dtype")),
        kv_cache_dtype=text_of(info.get("kv_cache_dtype")),
        block_size=count("page_size"),
        gpu_memory_utilization=_number(
            info.get("mem_fraction_static"), f"{where}: mem_fraction_static", most=1
        ),
        max_model_len=count_of(card.get("max_model_len"), where=f"{where}/v1/models: max_model_len")
        or count("context_length"),
        max_num_seqs=seqs,
        kv_cache_tokens=count("max_total_num_tokens"),
        weights_gib=_gib(state, "weight", where),
        kv_cache_memory_gib=_gib(state, "kvcache", where),
        arguments=_arguments(info, where),
    )
    return server


def _gib(state: dict[str, Any], name: str, where: str) -> float | None:
    memory = state.get("memory_usage")
    value = memory.get(name) if isinstance(memory, dict) else None
    return _number(value, f"{where}: memory_usage {name}", most=1 << 20)


def _number(value: object, where: str, *, most: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ServerError(f"{where} is {value!r:.40}, which is not possible")
    return float(value)


def _arguments(info: dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """The launch settings that change memory, by SGLang's own names."""
    counts = ("chunked_prefill_size", "max_total_tokens", "cuda_graph_max_bs")
    found = [
        (name.replace("_", "-"), str(count_of(info[name], where=f"{where}: {name}")))
        for name in counts
        if isinstance(info.get(name), int) and not isinstance(info[name], bool) and info[name] >= 0
    ]
    for name in ("swa_full_tokens_ratio", "mamba_full_memory_ratio"):
        value = _number(info.get(name), f"{where}: {name}", most=1000)
        if value is not None:
            found.append((name.replace("_", "-"), f"{value:g}"))
    for name in ("disable_radix_cache", "disable_cuda_graph"):
        if info.get(name) is True:
            found.append((name.replace("_", "-"), "true"))
    return tuple(found)
