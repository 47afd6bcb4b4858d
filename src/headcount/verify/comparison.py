"""An observation beside the engine's rules: predicted, reported, difference, term by term.

    weights                the engine's share of the tensors                              reported: weights after loading
    balance                total x utilization - weights - activation - non-torch         reported: cache memory
                           (SGLang: free before loading x fraction - weights              reported: cache and states)
    tokens_from_kv_memory  pool of the printed cache memory                               reported: blocks, tokens, concurrency
    bytes_per_token        cache bytes of one more token, of one request, or the longest    reported: bytes_per_token,
                           request that the cache memory holds                             kv_needed_gib, estimated_max_len
    term                   each reserve as the engine's rules predict it                  reported: activation, non-torch, graphs
    end_to_end             from model, card, release and settings alone                   reported: cache memory (else tokens)

The first, third and fourth are arithmetic; the second checks the arithmetic of the printed terms; the last carries the
engine's interval.
"""

from __future__ import annotations

from headcount.engines.vllm.rules import rules_for
from headcount.errors import HeadcountError
from headcount.units import GIB
from headcount.verify.case_of import SLOT_ENGINES, Asked
from headcount.verify.logs.llamacpp import ON_GPUS, SUMMED
from headcount.verify.observation import Comparison

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headcount.engines.base import Case, Pool, Replica
    from headcount.verify.observation import Observation


def compare(observation: Observation, asked: Asked) -> tuple[Comparison, ...]:
    """Every comparison that the observation's figures allow."""
    return (
        *_weights(observation, asked),
        *_balance(observation, asked),
        *_or_why_not(observation, asked, _pool, "tokens_from_kv_memory"),
        *_or_why_not(observation, asked, _needed, "bytes_per_token"),
        *_end_to_end(observation, asked),
    )


def _or_why_not(
    observation: Observation,
    asked: Asked,
    predict: Callable[[Observation, Asked], Iterator[Comparison]],
    check: str,
) -> tuple[Comparison, ...]:
    """The comparisons, or in their place what the engine's rules refuse; the other figures stay."""
    try:
        return tuple(predict(observation, asked))
    except HeadcountError as error:
        return (
            Comparison(
                quantity="tokens",
                check=check,
                unit="tokens",
                reported=observation.kv_cache_tokens,
                reason=str(error),
            ),
        )


def _weights(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    if observation.weights_gib is None:
        return
    reason = _other_weights(observation, asked)
    yield Comparison(
        quantity="weights",
        check="weights",
        unit="GiB",
        predicted=None if reason else asked.engine.loaded_bytes(asked.case) / GIB,
        reported=observation.weights_gib,
        reason=reason,
    )


def _other_weights(observation: Observation, asked: Asked) -> str:
    """Why the printed weights are not the tensors' bytes; "" when they are."""
    found = asked.engine
    if found.name in SLOT_ENGINES:
        if not asked.weights_known:
            # The mix is in no config, and another one is no prediction.
            return "the mix of the GGUF file was not said"
        notes = observation.notes.split("; ")
        summed = SUMMED if asked.case.model.tied_embeddings else ""
        return next((note for note in (ON_GPUS, summed) if note and note in notes), "")
    on_amd = found.name == "vllm" and asked.case.accelerator.vendor == "amd"
    if on_amd and rules_for(found.version).rocm_prints_used_memory:
        return f"vLLM {found.version} prints on AMD what the device lost while loading, not the tensors"
    return ""


def _balance(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    if observation.engine == "sglang":
        yield from _sglang_balance(observation, asked)
        return
    total, share = observation.gpu_total_memory_gib, observation.gpu_memory_utilization
    terms = (observation.weights_gib, observation.peak_activation_gib, observation.non_torch_gib)
    if observation.engine != "vllm" or total is None or share is None or None in terms:
        return
    if observation.kv_cache_memory_gib is None:
        return
    rules = rules_for(asked.engine.version)
    taken = sum(term for term in terms if term is not None)
    if rules.cuda_graphs_counted == "yes" and not rules.charged_by_free_memory:
        taken += observation.cuda_graphs_gib or 0.0
    yield Comparison(
        quantity="cache memory",
        check="balance",
        unit="GiB",
        predicted=total * share - taken,
        reported=observation.kv_cache_memory_gib,
    )


def _sglang_balance(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    """The fraction is of the memory that was free before the weights; what images need is kept from the rest (0.5.20 on)."""
    free, share = observation.free_before_gib, observation.gpu_memory_utilization
    weights, cache = observation.weights_gib, _whole_cache(observation)
    if free is None or share is None or weights is None or cache is None:
        return
    try:
        kept = dict(asked.engine.replica(asked.case).budget.overhead).get("images or sound", 0)
    except HeadcountError:
        # What the rules refuse was served all the same, and needs no buffers that they know.
        kept = 0
    yield Comparison(
        quantity="cache memory",
        check="balance",
        unit="GiB",
        predicted=free * share - weights - kept / GIB,
        reported=cache,
    )


def _whole_cache(observation: Observation) -> float | None:
    """The cache with the states that are printed apart from it."""
    if observation.kv_cache_memory_gib is None:
        return None
    return observation.kv_cache_memory_gib + (observation.states_gib or 0.0)


def _pool(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    memory = observation.kv_cache_memory_gib
    if memory is None or memory <= 0:
        return
    check = "tokens_from_kv_memory"
    pool = asked.engine.pool(asked.case, round(memory * GIB))
    pool = pool.replace(tokens=asked.engine.printed_tokens(asked.case, round(memory * GIB)))
    yield from _pool_figures(observation, pool, check)


def _pool_figures(observation: Observation, pool: Pool, check: str) -> Iterator[Comparison]:
    if observation.num_gpu_blocks is not None and pool.blocks is not None:
        yield Comparison(
            quantity="blocks",
            check=check,
            unit="blocks",
            predicted=pool.blocks,
            reported=observation.num_gpu_blocks,
        )
    if observation.kv_cache_tokens is not None:
        yield Comparison(
            quantity="tokens",
            check=check,
            unit="tokens",
            predicted=pool.tokens,
            reported=observation.kv_cache_tokens,
        )
    same_length = observation.max_concurrency_tokens in (None, observation.max_model_len)
    if observation.max_concurrency is not None and pool.concurrency is not None and same_length:
        yield Comparison(
            quantity="concurrency",
            check=check,
            unit="requests",
            predicted=pool.concurrency,
            reported=observation.max_concurrency,
        )


def _needed(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    memory, length = observation.kv_cache_memory_gib, observation.estimated_max_len
    if observation.kv_needed_gib is None and length is None and observation.bytes_per_token is None:
        return
    pool = asked.engine.pool(asked.case, round((memory or 0) * GIB))
    if observation.bytes_per_token is not None:
        yield Comparison(
            quantity="one token",
            check="bytes_per_token",
            unit="B",
            predicted=pool.bytes_per_token,
            reported=observation.bytes_per_token,
        )
    if observation.kv_needed_gib is not None and pool.needed_bytes is not None:
        yield Comparison(
            quantity="needed",
            check="bytes_per_token",
            unit="GiB",
            predicted=pool.needed_bytes / GIB,
            reported=observation.kv_needed_gib,
        )
    if length and memory:
        yield Comparison(
            quantity="longest length",
            check="bytes_per_token",
            unit="tokens",
            predicted=_longest(asked, round(memory * GIB)),
            reported=length,
        )


def _longest(asked: Asked, cache_bytes: int) -> int:
    """The longest request that ``cache_bytes`` hold, by bisection over the engine's own charge."""
    low, high = 0, asked.case.context
    while low < high:
        middle = (low + high + 1) // 2
        needed = asked.engine.pool(asked.case.replace(context=middle), cache_bytes).needed_bytes
        if needed is not None and needed <= cache_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _end_to_end(observation: Observation, asked: Asked) -> Iterator[Comparison]:
    memory = observation.kv_cache_memory_gib
    if not asked.card_known or (
        memory is None and not (observation.kv_cache_tokens or observation.num_gpu_blocks)
    ):
        return
    if asked.case.accelerator.vendor == "cpu":
        # There the cache is as large as its environment variable says; nothing is left over to predict.
        return
    try:
        replica = asked.engine.replica(_as_started(observation, asked))
    except HeadcountError as error:
        if asked.engine.name in SLOT_ENGINES:
            return
        yield Comparison(
            quantity="cache memory", check="end_to_end", unit="GiB", reported=memory, reason=str(error)
        )
        return
    yield from _terms(observation, asked, replica)
    budget = replica.budget
    if asked.engine.name in SLOT_ENGINES:
        # There a cache is as large as its context asks; the pool's own check compares it.
        return
    if memory is not None:
        yield Comparison(
            quantity="cache memory",
            check="end_to_end",
            unit="GiB",
            predicted=budget.kv_budget / GIB,
            low=budget.kv_low / GIB,
            high=budget.kv_high / GIB,
            reported=_whole_cache(observation),
        )
        return
    pools = [
        asked.engine.pool(asked.case, max(0, count))
        for count in (budget.kv_budget, budget.kv_low, budget.kv_high)
    ]
    for best, least, most in zip(
        *(_pool_figures(observation, pool, "end_to_end") for pool in pools), strict=True
    ):
        if best.quantity != "concurrency":
            yield best.replace(low=least.predicted, high=most.predicted)


def _as_started(observation: Observation, asked: Asked) -> Case:
    """The case of the server that ran: one of slots has a context that its slots share."""
    if asked.engine.name not in SLOT_ENGINES:
        return asked.case
    slots = observation.max_num_seqs or 1
    settings = asked.case.settings.replace(max_num_seqs=slots)
    return asked.case.replace(context=max(1, asked.case.context // slots), settings=settings)


# Words that begin an engine's own name of a term, the quantity, and the field of the observation.
_TERMS = (
    ("activations", "activation", "peak_activation_gib"),
    ("compute buffer", "activation", "peak_activation_gib"),
    ("communication and kernels", "non-torch", "non_torch_gib"),
    ("CUDA graphs", "CUDA graphs", "cuda_graphs_gib"),
)


def _terms(observation: Observation, asked: Asked, replica: Replica) -> Iterator[Comparison]:
    terms = dict(replica.budget.overhead)
    if asked.engine.name == "vllm" and rules_for(asked.engine.version).charged_by_free_memory:
        terms["activations"] = terms.get("activations", 0) + terms.get("CUDA graphs", 0)
    for name, predicted in terms.items():
        for words, quantity, field in _TERMS:
            reported = getattr(observation, field)
            if name.startswith(words) and reported is not None:
                yield Comparison(
                    quantity=quantity, check="term", unit="GiB", predicted=predicted / GIB, reported=reported
                )
