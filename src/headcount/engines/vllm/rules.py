"""What one vLLM release does differently from the next: versions as data.

Source: the released packages 0.8.5, 0.10.2, 0.11.2, 0.14.1, 0.17.1, 0.19.1, 0.21.0, 0.25.1, 0.29.0 and 0.33.0. Releases
between two samples are taken to follow the older one; ``EngineRules.version`` says whose rules were used.
"""

from __future__ import annotations

from headcount.errors import UnknownNameError
from headcount.record import Record

VERIFIED_VERSION = "0.33.0"
MAMBA_CACHE_MODES = ("none", "align", "all")


class EngineRules(Record):
    """What one vLLM release does, read in the released packages; only 0.33.0 is checked against its planner.

    default_utilization      gpu_memory_utilization when it is not given
    cuda_graphs_counted      no, opt-in or yes: whether graph memory is taken off the cache
    widen_below              a group is as large as the largest bucket if that is < this x the smallest; 0 never
    in_flight_batches        tokens in flight count every concurrent batch, else one batch
    null_block_reserved      the start-up check leaves one block out
    tokens_from_concurrency  KV tokens = int(concurrency x n), else blocks // groups x smallest block
    mamba_rule               "" unknown; one: 1 block; length: cdiv(n, block); mode: by mamba_cache_mode
    mamba_modes              mamba_cache_mode values
    mamba_all_speculative    mode "all" adds the speculative blocks
    mamba_checkpoints        mode "align" adds the prefill checkpoint blocks
    charged_memory           bytes outside weights and tensors that reduce the cache
    async_scheduling         on by default
    tier_160_gib             batch defaults have a tier for devices of 160 GiB and more
    a100_is_large            an A100-80GB takes the batch defaults of devices of 70 GiB and more
    """

    version: str
    default_utilization: float = 0.92
    cuda_graphs_counted: str = "yes"
    widen_below: float = 1.5
    in_flight_batches: bool = True
    null_block_reserved: bool = True
    tokens_from_concurrency: bool = True
    mamba_rule: str = "mode"
    mamba_modes: tuple[str, ...] = MAMBA_CACHE_MODES
    mamba_all_speculative: bool = True
    mamba_checkpoints: bool = True
    charged_memory: str = "growth since after NCCL set-up"
    async_scheduling: bool = True
    tier_160_gib: bool = True
    a100_is_large: bool = False


def _history() -> tuple[EngineRules, ...]:
    """Newest first; each release is the one after it with what differed undone."""
    newest = EngineRules(version="0.33.0", mamba_modes=("none", "align"))
    v29 = newest.replace(version="0.29.0", mamba_modes=MAMBA_CACHE_MODES)
    v25 = v29.replace(
        version="0.25.1",
        in_flight_batches=False,
        null_block_reserved=False,
        mamba_checkpoints=False,
        tier_160_gib=False,
    )
    v21 = v25.replace(version="0.21.0", mamba_all_speculative=False)
    v19 = v21.replace(
        version="0.19.1",
        default_utilization=0.90,
        cuda_graphs_counted="opt-in",
        tokens_from_concurrency=False,
    )
    v17 = v19.replace(version="0.17.1", cuda_graphs_counted="no", widen_below=1.25)
    v14 = v17.replace(version="0.14.1", mamba_rule="length", mamba_modes=("none",))
    v11 = v14.replace(version="0.11.2", widen_below=0.0, async_scheduling=False)
    v10 = v11.replace(version="0.10.2", mamba_rule="one", charged_memory="growth since before NCCL set-up")
    v08 = v10.replace(
        version="0.8.5",
        mamba_rule="",
        mamba_modes=(),
        charged_memory="every byte on the device",
        a100_is_large=True,
    )
    return (newest, v29, v25, v21, v19, v17, v14, v11, v10, v08)


RULES: dict[str, EngineRules] = {rules.version: rules for rules in _history()}


def rules_for(engine_version: str) -> EngineRules:
    """Return the rules in force: of the newest known release that is not newer than ``engine_version``.

    The releases in ``RULES`` are samples. A release between two of them gets the older one's rules, a
    release after the last one gets the last one's; ``EngineRules.version`` says whose rules were used.
    Raises UnknownNameError for text that is no version and for releases older than the first sample.
    """
    wanted = release(engine_version)
    for version, rules in RULES.items():
        if wanted and release(version) <= wanted:
            return rules
    raise UnknownNameError(
        what="vLLM version",
        given=engine_version,
        allowed=list(RULES),
        hint=f"rules are known for {', '.join(reversed(RULES))} and releases after each",
    )


def release(version: str) -> tuple[int, ...]:
    """``v0.8.5.post1`` -> (0, 8, 5); () when there are no two leading numbers."""
    out: list[int] = []
    for part in version.strip().removeprefix("v").split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        out.append(int(digits))
    return (*out, *[0] * (3 - len(out))) if len(out) >= 2 else ()
