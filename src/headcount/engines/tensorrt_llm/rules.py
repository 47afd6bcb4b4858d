"""What TensorRT-LLM's releases do differently, which models its V1 cache manager sizes, and its own arguments.

Sources, read 2026-11: NVIDIA/TensorRT-LLM ``tensorrt_llm/_torch/pyexecutor/_util.py`` at commit 0004396720 (2026, after
1.2.1) and ``resource_manager.py`` at d2a5560 (1.1) and of the 1.2 and 1.3 branches; ``commands/serve.py`` at 00209af.

    release          blocks of a budget                      windows in pools of their own
    before 1.2       ceil(tokens / block): one may reach past the budget    shares not read: refused
    1.2 and later    floor(tokens / block)                                  equal shares
"""

from __future__ import annotations

from headcount.engines.arguments import Argument
from headcount.engines.base import head_refusal
from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.spec.attention import (
    CompressedLatent,
    CrossAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    StateSpace,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.spec.model import ModelSpec

# The newest final release on PyPI on 2026-11-30; 1.3 and 1.4 are release candidates.
NEWEST = "1.2.1"
DEFAULT_FRACTION = 0.9
DEFAULT_BLOCK_TOKENS = 32
# trtllm-serve: --max_batch_size 2048, --max_num_tokens 8192.
DEFAULT_BATCH = 2048
DEFAULT_BATCHED_TOKENS = 8192

ARGUMENTS = (
    Argument(
        name="tokens-per-block",
        kind="count",
        help="kv_cache_config.tokens_per_block: tokens of one block",
        default=DEFAULT_BLOCK_TOKENS,
    ),
    Argument(name="max-tokens", kind="count", help="kv_cache_config.max_tokens: most tokens of the pool"),
    Argument(
        name="max-attention-window",
        kind="choice",
        help="kv_cache_config.max_attention_window: none (every layer keeps all tokens) or the model's own windows",
        default="none",
        choices=("none", "model"),
    ),
    Argument(
        name="enable-attention-dp",
        kind="flag",
        help="enable_attention_dp: attention and cache of a request on one rank, experts divided",
        default=False,
    ),
)


class Release(Record):
    """One release: its numbers, and the rules in force."""

    version: str
    rounds_blocks_up: bool
    window_pools: bool
    pytorch_default: bool


def release_rules(version: str | None) -> Release:
    """Return the rules of ``version`` (the newest final release when None); UnknownNameError for text that is none."""
    text = (version or NEWEST).strip().removeprefix("v")
    numbers: list[int] = []
    for part in text.split(".")[:2]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    if len(numbers) < 2:
        raise UnknownNameError(
            what="TensorRT-LLM version", given=text, allowed=[NEWEST, "1.1.0", "1.0.0"], hint="a release"
        )
    return Release(
        version=text,
        rounds_blocks_up=numbers < [1, 2],
        window_pools=numbers >= [1, 2],
        pytorch_default=numbers >= [1, 0],
    )


def cache_refusal(model: ModelSpec) -> str | None:
    """Why no rule is known for the model's cache; None when the V1 manager's arithmetic covers it.

    One width of keys and values, one head width over all layers, or one latent; states, shared, compressed, indexed
    and cross caches go to other managers, whose pools are not reproduced here.
    """
    widths: set[tuple[str, int]] = set()
    for layer, _ in model.layer_runs():
        for mixer in layer.mixers:
            reason = _mixer_refusal(mixer)
            if reason:
                return reason
            if isinstance(mixer, HeadedAttention):
                widths.add(("head", mixer.head_dim))
            elif isinstance(mixer, LatentAttention):
                widths.add(("latent", mixer.latent_width))
    if len(widths) > 1:
        return "layers of different head widths need TensorRT-LLM's V2 cache manager, which is not modelled"
    return None if widths else "no layer keeps keys and values, and a cache of states alone is not modelled"


def _mixer_refusal(mixer: object) -> str | None:
    if isinstance(mixer, StateSpace):
        return "recurrent layers need TensorRT-LLM's Mamba cache managers, which are not modelled"
    if isinstance(mixer, SharedCache):
        return "layers that share a cache need TensorRT-LLM's V2 cache manager, which is not modelled"
    if isinstance(mixer, CompressedLatent):
        return "compressed attention has its own cache manager in TensorRT-LLM, which is not modelled"
    if isinstance(mixer, CrossAttention):
        return "the cross-attention pool of TensorRT-LLM's encoder-decoders is not modelled"
    if isinstance(mixer, LatentAttention) and mixer.index_head_dim:
        return "the sparse indexer's cache in TensorRT-LLM is not modelled"
    if isinstance(mixer, HeadedAttention) and mixer.head_dim != mixer.v_head_dim:
        return (
            f"TensorRT-LLM stores keys and values in one width; here they are {mixer.head_dim} "
            f"and {mixer.v_head_dim}"
        )
    return None


def layout_refusal(model: ModelSpec, layout: Layout) -> str | None:
    """Heads are whole, a pipeline has no more stages than blocks, and the cache is one that is modelled."""
    if layout.pp > len(model.layers):
        return f"{len(model.layers)} layers cannot make {layout.pp} stages"
    return cache_refusal(model) or head_refusal(model, layout.tp)
