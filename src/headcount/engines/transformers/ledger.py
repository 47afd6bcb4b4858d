"""The arithmetic of one GPU under transformers as terms: a batch of ``generate``, or continuous batching."""

from __future__ import annotations

from headcount.engines.transformers import memory
from headcount.ledger import Ledger, Term
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case, GpuBudget
    from headcount.engines.transformers.paged import PagedCache

    _Row = tuple[str, str, int, str, str, str, str]

VERIFIED_VERSION = "5.24.0"
BESIDE = "prompt activations, growth and logits of the batch"


class Cost(Record):
    """What one conversation of a batch takes on a GPU at its peak; ``kept``: its cache's tensors, ``cache`` with gaps."""

    kept: int
    cache: int
    prompt_cache: int
    prompt_activations: int
    growth: int
    logits: int

    @property
    def total(self) -> int:
        """The larger of the two moments, and the logits of either."""
        return self.logits + max(self.cache + self.growth, self.prompt_cache + self.prompt_activations)

    @property
    def beside(self) -> int:
        """The peak less the cache itself: gaps, growth, activations, logits."""
        return self.total - self.kept

    @property
    def prompt_binds(self) -> bool:
        """Whether reading the prompt takes more than the last step."""
        return self.prompt_cache + self.prompt_activations > self.cache + self.growth


def _numbered(rows: tuple[_Row, ...], origins: dict[str, str]) -> tuple[Term, ...]:
    """Rows as terms; a term that a calibration gave is ``measured``, with its file or origin as the source."""
    terms = (
        Term(
            name=name, symbol=symbol, value=value, unit=unit, formula=formula, numbers=numbers, source=source
        )
        for name, symbol, value, unit, formula, numbers, source in rows
    )
    return tuple(
        term.replace(formula="measured", numbers="", source=origins[term.symbol])
        if term.symbol in origins
        else term
        for term in terms
    )


def _memory_rows(case: Case, budget: GpuBudget) -> tuple[_Row, ...]:
    """Total, what is kept free of it, weights, context."""
    several = ", communication" if case.layout.tp > 1 else ""
    least, most = memory.LEAST.fixed(case.layout.tp), memory.MOST.fixed(case.layout.tp)
    total = "--memory" if case.settings.memory_bytes else "what CUDA reports"
    return (
        ("card memory", "M", budget.memory, "B", total, "", case.accelerator.name),
        (
            "weights on this GPU",
            "W",
            budget.weights,
            "B",
            "tensors in the checkpoint's type",
            f"T = {case.layout.tp}",
            "",
        ),
        (
            "context and kernels",
            "X",
            budget.overhead[0][1],
            "B",
            f"CUDA context, kernels, workspaces{several}",
            f"within {least:,} to {most:,}",
            memory.SOURCE,
        ),
    )


def batch_ledger(case: Case, budget: GpuBudget, cost: Cost, count: int, origins: dict[str, str]) -> Ledger:
    """One batch: a conversation's peak, how many fit, and what of it is cache."""
    fixed, beside = (size for _, size in budget.overhead)
    room = budget.memory - budget.reserved - budget.weights - fixed
    planned = max(1, count)
    limit = case.settings.max_num_seqs
    # Without a fraction nothing is kept free.
    kept: tuple[_Row, ...] = ()
    symbol = number = ""
    if budget.reserved:
        share = case.settings.utilization or 1 - (case.settings.reserve or 0.0)
        numbers = f"{budget.memory:,} - {budget.memory:,} x {share:g}"
        kept = (("kept free", "R", budget.reserved, "B", "M - M x the fraction asked for", numbers, ""),)
        symbol, number = "R - ", f"{budget.reserved:,} - "
    rows: tuple[_Row, ...] = (
        *_memory_rows(case, budget),
        *kept,
        (
            "left for the batch",
            "B",
            room,
            "B",
            f"M - {symbol}W - X",
            f"{budget.memory:,} - {number}{budget.weights:,} - {fixed:,}",
            "",
        ),
        *_conversation_rows(case, cost),
        (
            "conversations per replica",
            "N_conv",
            count,
            "conversations",
            "floor(B / e)" if limit is None else "min(floor(B / e), batch)",
            f"floor({room:,} / {cost.total:,})"
            if limit is None
            else f"min(floor({room:,} / {cost.total:,}), {limit:,})",
            "",
        ),
        (BESIDE, "O", beside, "B", "N_conv (e - k)", f"{planned:,} x {cost.beside:,}", ""),
        ("left for caches", "C", budget.kv_budget, "B", "B - O", f"{room:,} - {beside:,}", ""),
    )
    return Ledger(name="one GPU, one batch", terms=_numbered(rows, origins))


def _conversation_rows(case: Case, cost: Cost) -> tuple[_Row, ...]:
    """Cache, growth, prompt and logits of one conversation, and its peak."""
    where = f"transformers {VERIFIED_VERSION} cache_utils.py"
    gaps = f"{memory.EXPECTED.allocator_percent} % of gaps"
    return (
        ("cache of one conversation", "k", cost.kept, "B", "its tensors", f"{case.context:,} tokens", where),
        ("the same in the allocator", "k'", cost.cache, "B", f"k and {gaps}", "", memory.SOURCE),
        ("growth of its largest layer", "g", cost.growth, "B", "old beside new", "", where),
        (
            "cache after its prompt",
            "p",
            cost.prompt_cache,
            "B",
            f"windows not yet cut, and {gaps}",
            "",
            where,
        ),
        (
            "activations of its prompt",
            "a",
            cost.prompt_activations,
            "B",
            "tokens of a pass x widest block",
            "",
            memory.SOURCE,
        ),
        (
            "its logits",
            "v",
            cost.logits,
            "B",
            "V (bytes + 8)",
            f"V = {case.model.vocab_size:,}",
            memory.SOURCE,
        ),
        (
            "one conversation at its peak",
            "e",
            cost.total,
            "B",
            "max(k' + g, p + a) + v",
            f"max({cost.cache:,} + {cost.growth:,}, {cost.prompt_cache:,} + {cost.prompt_activations:,}) "
            f"+ {cost.logits:,}",
            "",
        ),
    )


def paged_ledger(
    case: Case, budget: GpuBudget, cache: PagedCache, made: tuple[int, int], origins: dict[str, str]
) -> Ledger:
    """Continuous batching: ``made`` is sectors and conversations."""
    where = f"transformers {VERIFIED_VERSION} generation/continuous_batching"
    sectors, count = made
    fixed, beside = (size for _, size in budget.overhead)
    free = budget.memory - budget.weights - fixed
    available = free - budget.reserved
    rows = (
        *_memory_rows(case, budget),
        (
            "kept free",
            "R",
            budget.reserved,
            "B",
            "(M - W - X)(1 - max_memory_percent)",
            f"{free:,} - {available:,}",
            where,
        ),
        ("batch tensors, logits, reads", "A", beside, "B", "M - W - X - R - S s", "", where),
        ("bytes of a sector", "s", cache.sector_bytes, "B", "lcm of the groups' blocks", "", where),
        (
            "sectors",
            "S",
            sectors,
            "sectors",
            "floor((M - W - X - R - fixed) / cost of a sector)",
            f"of {available:,} available",
            where,
        ),
        (
            "blocks",
            "P",
            cache.blocks(sectors),
            "blocks",
            "S s / (page of every layer)",
            f"{sectors:,} x {cache.sector_bytes:,} / {cache.block_bytes:,}",
            where,
        ),
        (
            "conversations per replica",
            "N_conv",
            count,
            "conversations",
            "most whose blocks fit the sectors",
            f"{sectors:,} sectors, {case.context:,} tokens each",
            where,
        ),
    )
    return Ledger(name="one GPU, continuous batching", terms=_numbered(rows, origins))
