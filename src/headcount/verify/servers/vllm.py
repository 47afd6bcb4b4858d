"""vLLM's OpenAI server: ``/version``, ``/v1/models``, and ``vllm:cache_config_info`` among its metrics.

The labels of ``cache_config_info`` are the cache's configuration after start: the block size in force, the blocks, and
(read on 0.32.0) also the two figures of the start-up log, ``kv_cache_size_tokens`` and ``kv_cache_max_concurrency``.
Usage is 1 - free / (blocks - 1): one block, the null block, is never given out.
"""

from __future__ import annotations

import time

from headcount.units import GIB
from headcount.verify.observation import Observation
from headcount.verify.servers.http import ServerError
from headcount.verify.servers.metrics import Sample, fetch_metrics, fullest, total
from headcount.verify.servers.server import LiveServer, Usage, count_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.verify.servers.http import Client

_INFO = "vllm:cache_config_info"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_PREEMPTIONS = "vllm:num_preemptions_total"
# The second is the older name.
_FRACTIONS = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_WANTED = (_RUNNING, _WAITING, _PREEMPTIONS, *_FRACTIONS)


class VllmServer(LiveServer):
    """See the module."""

    def usage(self) -> Usage:
        """Sums over the engines of a data-parallel server; the fraction is that of the fullest."""
        samples = fetch_metrics(self.client, _WANTED)
        if samples is None:
            return Usage()
        return Usage(
            running=total(samples, _RUNNING),
            waiting=total(samples, _WAITING),
            fraction=fullest(samples, _FRACTIONS, self.client.address.words()),
            preemptions=total(samples, _PREEMPTIONS),
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


def attach_vllm(client: Client, card: dict[str, Any]) -> VllmServer:
    """Read what a vLLM server says. Raises ServerError where it contradicts itself or says something impossible."""
    server = VllmServer(client, words="vLLM", model=str(card["id"]), observation=Observation(engine="vllm"))
    where = client.address.words()
    release = server.get_json("/version")
    version = text_of(release.get("version")) if isinstance(release, dict) else None
    samples = fetch_metrics(client, (_INFO,))
    values: dict[str, Any] = {}
    notes = ["no metrics: the server was started without statistics"] if samples is None else []
    if samples:
        values, notes = _cache(samples, where)
    server.words = f"vLLM {version}" if version else "vLLM of an unstated version"
    server.observation = Observation(
        engine="vllm",
        id=where,
        source_url=where,
        date=time.strftime("%Y-%m-%d"),
        engine_version=version,
        model=text_of(card.get("root")) or server.model,
        max_model_len=count_of(card.get("max_model_len"), where=f"{where}/v1/models: max_model_len"),
        notes="; ".join(notes),
        **values,
    )
    return server


def _cache(samples: list[Sample], where: str) -> tuple[dict[str, Any], list[str]]:
    """The fields of an observation from the info labels, one sample for each engine."""
    engines = [sample.labels for sample in samples]
    blocks = [count_of(labels.get("num_gpu_blocks"), where=f"{where}: num_gpu_blocks") for labels in engines]
    least = min((count for count in blocks if count is not None), default=None)
    labels = engines[blocks.index(least)]
    notes = []
    if len(set(blocks)) > 1:
        notes.append(f"blocks of its engines: {', '.join(map(str, blocks))}; the fewest are read")

    def count(name: str) -> int | None:
        return count_of(labels.get(name), where=f"{where}: {name}")

    def number(name: str) -> float | None:
        return _number(labels.get(name), f"{where}: {name}")

    arguments = [
        (name.replace("_", "-"), labels[name].lower())
        for name in ("enable_prefix_caching", "num_gpu_blocks_override", "sliding_window")
        if labels.get(name, "None") != "None"
    ]
    if labels.get("user_specified_block_size") == "True" and "block_size" in labels:
        arguments.append(("block-size", labels["block_size"]))
    cache_bytes = count("kv_cache_memory_bytes")
    return {
        "block_size": count("effective_attention_block_size") or count("block_size"),
        "kv_cache_dtype": text_of(labels.get("cache_dtype")),
        "gpu_memory_utilization": number("gpu_memory_utilization"),
        "num_gpu_blocks": least,
        "kv_cache_tokens": count("kv_cache_size_tokens"),
        "max_concurrency": number("kv_cache_max_concurrency"),
        "kv_cache_memory_gib": None if cache_bytes is None else cache_bytes / GIB,
        "data_parallel": len(engines) if len(engines) > 1 else None,
        "arguments": tuple(arguments),
    }, notes


def _number(text: str | None, where: str) -> float | None:
    if text is None or text == "None":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise ServerError(f"{where} is {text!r:.40}, which is not possible")
    return value


def usable_blocks(observation: Observation) -> int | None:
    """Blocks that requests can hold: all but the null block; None where the server did not say."""
    if observation.num_gpu_blocks is None:
        return None
    return max(observation.num_gpu_blocks - 1, 0)
