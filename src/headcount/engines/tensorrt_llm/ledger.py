"""The arithmetic of one TensorRT-LLM GPU as terms: what is free after loading, then blocks and conversations."""

from __future__ import annotations

from headcount.engines.tensorrt_llm import memory
from headcount.engines.tensorrt_llm.pools import PoolPlan
from headcount.ledger import Ledger, Term
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case, GpuBudget
    from headcount.engines.tensorrt_llm.pools import WindowPool

# What a calibration calls a term -> its symbol here.
_MEASURED = {"device_bytes": "M", "weight_bytes": "W", "activation_bytes": "A", "non_torch_bytes": "X"}


class Stage(Record):
    """One pipeline stage's GPU: bytes free after loading, expected, least and most."""

    cut: tuple[int, int]
    plan: PoolPlan
    total: int
    weights: int
    reserve: memory.Reserve

    def free(self, taken: int) -> int:
        """What is left of the card beside the weights and ``taken``; negative when they do not fit."""
        return self.total - self.weights - taken


class Answer(Record):
    """What was made of the stage: conversations, at most ``most``, in ``shards`` groups of requests.

    measured   terms of a calibration, each with its file or origin
    """

    version: str
    count: int
    most: int
    fraction: float
    shards: int
    measured: dict[str, str]


def stage_ledger(case: Case, stage: Stage, budget: GpuBudget, found: Answer) -> Ledger:
    """The arithmetic of one GPU, term by term."""
    terms = (*_memory_terms(case, stage, budget, found), *_block_terms(case, stage, budget, found))
    origins = {_MEASURED[name]: where for name, where in found.measured.items()}
    return Ledger(
        name=f"one GPU, layers {stage.cut[0]} to {stage.cut[1] - 1}",
        terms=tuple(
            term.replace(formula="measured", numbers="", source=origins[term.symbol])
            if term.symbol in origins
            else term
            for term in terms
        ),
    )


def _where(found: Answer) -> str:
    return f"TensorRT-LLM {found.version}, PyTorch backend, V1 cache manager"


def _memory_terms(case: Case, stage: Stage, budget: GpuBudget, found: Answer) -> tuple[Term, ...]:
    reserve = stage.reserve
    free = stage.free(reserve.total)
    asked = case.settings.memory_bytes is not None
    rows: tuple[tuple[str, str, int, str, str, str], ...] = (
        (
            "card memory",
            "M",
            stage.total,
            "--memory" if asked else "what CUDA reports",
            "",
            case.accelerator.name,
        ),
        (
            "weights on this GPU",
            "W",
            stage.weights,
            "this rank's tensors",
            f"T = {case.layout.tp}, layers {stage.cut[0]} to {stage.cut[1] - 1}",
            "",
        ),
        (
            "activations at the profile run",
            "A",
            reserve.activation,
            "tokens x (3 F / T + 4 D) 2, and top_k experts",
            f"{reserve.tokens:,} tokens",
            memory.SOURCE,
        ),
        (
            "outside torch",
            "X",
            reserve.outside,
            "context, kernels, communication, graphs",
            f"A + X within {reserve.low:,} to {reserve.high:,}",
            memory.SOURCE,
        ),
        (
            "free after loading",
            "F",
            free,
            "M - W - A - X",
            f"{stage.total:,} - {stage.weights:,} - {reserve.activation:,} - {reserve.outside:,}",
            "",
        ),
        ("cache", "C", budget.kv_budget, "F x fraction", f"{free:,} x {found.fraction:g}", _where(found)),
    )
    return tuple(
        Term(name=n, symbol=s, value=v, unit="B", formula=f, numbers=x, source=w) for n, s, v, f, x, w in rows
    )


def _pool_words(pool: WindowPool) -> str:
    return f"window {pool.window:,}" if pool.window else "all tokens"


def _each(counts: list[str], pools: tuple[WindowPool, ...]) -> str:
    """One figure, or one for each pool with the pool's name."""
    if len(pools) == 1:
        return counts[0]
    return "; ".join(f"{_pool_words(pool)}: {count}" for pool, count in zip(pools, counts, strict=True))


def _block_terms(case: Case, stage: Stage, budget: GpuBudget, found: Answer) -> tuple[Term, ...]:
    plan, where = stage.plan, _where(found)
    pools, tokens = plan.pools, plan.block_tokens
    blocks = plan.blocks(max(0, budget.kv_budget))
    held = [pool.blocks_of(case.context, tokens) for pool in pools]
    share = f"{max(0, budget.kv_budget):,}" + (f" / {len(pools)}" if len(pools) > 1 else "")
    cap = "" if plan.max_tokens is None or len(pools) > 1 else f", at most {plan.max_tokens:,} tokens"
    rounding = "up" if plan.rounds_up else "down"
    # The pool that runs out first.
    least = min(range(len(pools)), key=lambda i: blocks[i] // held[i])
    several = f" of each of {len(pools)} pools" if len(pools) > 1 else ""
    rows: tuple[tuple[str, str, int, str, str, str], ...] = (
        (
            "bytes of one token",
            "b",
            plan.bytes_per_token,
            "B",
            "2 sum over layers ceil(K / T) H p; of a latent (r + d_rope) p",
            _each([_token_numbers(pool) for pool in pools], pools),
        ),
        (
            f"blocks{several}",
            "P",
            blocks[least],
            "blocks",
            f"{'equal shares of C' if several else 'C'} / b in blocks of {tokens}, rounded {rounding}",
            _each(
                [
                    f"{share} / {pool.bytes_per_token:,} / {tokens} = {count:,}"
                    for pool, count in zip(pools, blocks, strict=True)
                ],
                pools,
            )
            + cap,
        ),
        (
            "blocks of one conversation",
            "R",
            held[least],
            "blocks",
            "ceil(n / block)" + ("; a full window: ceil(w / block) + 1" if several else ""),
            _each(
                [
                    f"ceil({case.context:,} / {tokens}) = {count:,}"
                    if not pool.window or case.context <= pool.window
                    else f"ceil({pool.window:,} / {tokens}) + 1 = {count:,}"
                    for pool, count in zip(pools, held, strict=True)
                ],
                pools,
            ),
        ),
    )
    terms = (
        Term(name=n, symbol=s, value=v, unit=u, formula=f, numbers=x, source=where)
        for n, s, v, u, f, x in rows
    )
    return (*terms, _count_term(found, blocks[least], held[least]))


def _count_term(found: Answer, blocks: int, held: int) -> Term:
    groups, numbers = ("groups x ", f"{found.shards} x ") if found.shards > 1 else ("", "")
    return Term(
        name="conversations per replica",
        symbol="N_conv",
        value=found.count,
        unit="conversations",
        formula=f"min({groups}floor(P / R), batch)",
        numbers=f"min({numbers}floor({blocks:,} / {held:,}), {found.most:,})",
        source=_where(found),
    )


def _token_numbers(pool: WindowPool) -> str:
    if pool.kv == "nvfp4":
        return f"{pool.values:,} / 2 + {pool.values:,} / 16 (nvfp4)"
    return f"{pool.values:,} x {pool.bytes_per_token // pool.values} ({pool.kv})"
