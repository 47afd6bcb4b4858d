"""Golden cases: layer mixes and what vLLM's own planner answered for them, beside our pages.

A case gives ``layers`` (runs of a layer), ``max_model_len``, ``max_in_flight_tokens``, ``mamba_cache_mode``, ``hybrid_manager``,
``available_bytes`` and ``expect`` (bytes per block, blocks, tokens, concurrency, need, fits; or that the mix is refused).
"""

from __future__ import annotations

from headcount.engines.vllm.groups import CacheLayer
from headcount.engines.vllm.pages import attention_layer, latent_layer, plan_pages, state_layer
from headcount.errors import HeadcountError, LayoutError, UnsupportedModelError, UsageError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.engines.vllm.pages import PagePlan

# Bytes of one number of kv_dtype.
_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
}
_KINDS = {"full_attention": "full", "sliding_window": "sliding", "chunked_local": "chunked", "cross": "cross"}
FIGURES = ("bytes_per_block", "num_blocks", "kv_tokens", "max_concurrency", "need_bytes", "fits")


class PlannerOutcome(Record):
    """One case: what we predict and what vLLM's planner said; ``exact`` when every figure agrees."""

    id: str
    predicted: dict[str, Any]
    reported: dict[str, Any]
    exact: bool
    reason: str


def cache_layer(raw: dict[str, Any]) -> CacheLayer:
    """One layer of a case."""
    if raw["kind"] == "mamba":
        return state_layer(
            block_size=raw["block_size"],
            state_bytes=raw["state_bytes"],
            page_bytes=raw.get("page_padded_bytes") or 0,
            speculative_blocks=raw.get("speculative_blocks") or 0,
        )
    number = _BYTES[raw["kv_dtype"]]
    if raw["kind"] == "mla":
        return latent_layer(
            block_size=raw["block_size"],
            width=raw["latent_width"],
            token_bytes=raw["latent_width"] * number,
            dtype=raw["kv_dtype"],
        )
    return attention_layer(
        _KINDS[raw["kind"]],
        block_size=raw["block_size"],
        heads=raw["kv_heads_per_rank"],
        widths=(raw["head_size"], raw["head_size_v"]),
        token_bytes=raw["kv_heads_per_rank"] * (raw["head_size"] + raw["head_size_v"]) * number,
        dtype=raw["kv_dtype"],
        reach=raw.get("window", raw.get("chunk", 0)),
    )


def judge_case(case: dict[str, Any], where: str) -> PlannerOutcome:
    """Plan one case and compare every figure.

    Raises UsageError for a case that lacks an entry or names a layer kind or dtype that is not known.
    """
    expected = _check_case(case, where)
    try:
        layers = [(cache_layer(run["layer"]), run["count"]) for run in case["layers"]]
        plan = plan_pages(
            layers,
            hybrid_manager=case["hybrid_manager"],
            mamba_cache_mode=case["mamba_cache_mode"],
            engine_version=case["engine_version"],
        )
        predicted, reason = _figures(plan, case), ""
    except (LayoutError, UnsupportedModelError) as error:
        predicted, reason = {"refused": True}, str(error)
    except HeadcountError as error:
        raise UsageError(f"{where}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{where}: not a planner case: {type(error).__name__} {error}") from None
    reported = {name: expected[name] for name in (*FIGURES, "refused") if name in expected}
    if expected.get("refused"):
        exact = bool(predicted.get("refused"))
        reported = {"refused": True}
    else:
        exact = all(_same(predicted.get(name), reported.get(name)) for name in FIGURES if name in reported)
    name = str(case.get("id") or case.get("case") or where)
    return PlannerOutcome(id=name, predicted=predicted, reported=reported, exact=exact, reason=reason)


def _check_case(case: dict[str, Any], where: str) -> dict[str, Any]:
    """What the planner is said to have answered; UsageError unless every count is one."""
    expected, layers = case.get("expect"), case.get("layers")
    if not isinstance(expected, dict) or not (expected.get("refused") or set(FIGURES) & set(expected)):
        raise UsageError(f"{where}: 'expect' says neither a figure nor that the mix is refused")
    if not isinstance(layers, list) or not layers:
        raise UsageError(f"{where}: 'layers' is no list of layers")
    counts = [case.get(name) for name in ("max_model_len", "max_in_flight_tokens", "available_bytes")]
    for run in layers:
        layer = run.get("layer") if isinstance(run, dict) else None
        if not isinstance(layer, dict):
            raise UsageError(f"{where}: a run of layers has no 'layer'")
        counts.append(run.get("count"))
        counts += [layer[name] for name in _COUNTS if layer.get(name) is not None]
    if any(
        not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**60 for count in counts
    ):
        raise UsageError(f"{where}: every count must be a whole number of at least 1")
    if sum(run["count"] for run in layers) > _MOST_LAYERS:
        raise UsageError(f"{where}: more than {_MOST_LAYERS:,} layers")
    return expected


_MOST_LAYERS = 100_000
_COUNTS = (
    "block_size",
    "kv_heads_per_rank",
    "head_size",
    "head_size_v",
    "latent_width",
    "state_bytes",
    "page_padded_bytes",
    "window",
    "chunk",
)


def _figures(plan: PagePlan, case: dict[str, Any]) -> dict[str, Any]:
    available, tokens, flight = case["available_bytes"], case["max_model_len"], case["max_in_flight_tokens"]
    blocks = plan.num_blocks(available)
    return {
        "bytes_per_block": plan.bytes_per_block,
        "num_blocks": blocks,
        "kv_tokens": plan.kv_tokens(blocks, tokens, flight),
        "max_concurrency": plan.concurrency(blocks, tokens, flight),
        "need_bytes": plan.needed_bytes(tokens, flight),
        "fits": plan.fits(available, tokens, flight),
    }


def _same(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) or isinstance(theirs, float):
        return (
            isinstance(ours, int | float)
            and isinstance(theirs, int | float)
            and abs(ours - theirs) <= 1e-9 * abs(theirs)
        )
    return ours == theirs
