"""The KV cache: bytes per token and conversation, what it saves, what it costs; from ``cost/``."""

from __future__ import annotations

from headcount.cost.cache import (
    conversation_bytes,
    fitting_formats,
    growing_attention,
    mixer_runs,
    token_bytes,
)
from headcount.cost.weights import weight_bytes
from headcount.errors import HeadcountError
from headcount.explain.derivation import Derivation, Quantity, Step, Symbol, Table
from headcount.spec.attention import (
    CrossAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.kv_format import kv_format
from headcount.spec.reader import read_model
from headcount.units import gb, gib, human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.asked import Asked
    from headcount.spec.attention import Mixer
    from headcount.spec.model import ModelSpec

MODEL, CONTEXT = "llama-2-7b", 2048
SHOWN = ("fp32", "fp16", "fp8", "int8_per_token_head", "q8_0", "q4_0")


def derive(asked: Asked) -> Derivation:
    """Bytes first, then the work a cache saves, then what it weighs beside the weights."""
    name = asked.model or MODEL
    model = read_model(name)
    n = asked.context or CONTEXT
    steps = [_bytes(model, n), _formats(model, n)]
    heads = _heads(name, model)
    steps += [heads] if heads is not None else []
    steps.append(_with_and_without(n))
    check = _check()
    steps += [check] if check is not None else []
    steps += [_beside_the_weights(model, n)] if model.parameters_known else []
    return Derivation(
        topic="kv-cache",
        title=f"The KV cache: {model.name}, {n:,} tokens",
        summary=f"{model.source}. Keys and values of earlier tokens never change, so they are kept instead of "
        f"computed again.",
        symbols=_symbols(model, n),
        steps=tuple(steps),
        sources=(
            "Shazeer 2019 (one key/value head); Ainslie et al. 2023 (groups)",
            "the model's own configuration",
        ),
    )


def grows(mixer: Mixer) -> bool:
    """Whether a layer keeps something of its own for each token."""
    return not isinstance(mixer, StateSpace | CrossAttention | SharedCache)


def _formulas(model: ModelSpec, n: int) -> tuple[str, str]:
    """``(b, c)`` in the letters of this model: one product where all growing layers are alike, else a sum over kinds."""
    kinds = [mixer for mixer, _ in mixer_runs(model) if grows(mixer)]
    per_token = "b = sum_i L_i e_i"
    if kinds and all(isinstance(mixer, LatentAttention) and not mixer.index_head_dim for mixer in kinds):
        per_token = "b = L (r + R) p"
    elif kinds and all(isinstance(mixer, HeadedAttention) for mixer in kinds):
        shapes = {
            (m.num_key_value_heads, m.head_dim, m.v_head_dim) for m in kinds if isinstance(m, HeadedAttention)
        }
        if len(shapes) == 1:
            _, key, value = shapes.pop()
            per_token = "b = 2 L K H p" if key == value else "b = L K (H + H') p"
    if all(type(mixer) in (FullAttention, LatentAttention) for mixer, _ in mixer_runs(model)):
        return per_token, "c = b n"
    if all(isinstance(m, FullAttention | SlidingWindow | LatentAttention) for m, _ in mixer_runs(model)):
        return per_token, "c = sum_i L_i e_i min(n, w_i)"
    return per_token, "c = sum_i L_i e_i t_i"


def _token_line(mixer: Mixer, times: int, entry: int) -> str:
    """The bytes of one token in all layers of a kind, with the numbers put in; nothing where there is no such product."""
    if isinstance(mixer, LatentAttention):
        key = f" + {mixer.indexer_bytes}" if mixer.indexer_bytes else ""
        product = f"{times} x (({mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}) x 2{key})"
    elif not isinstance(mixer, HeadedAttention) or not grows(mixer):
        return ""
    elif mixer.head_dim == mixer.v_head_dim:
        product = f"2 x {times} x {mixer.num_key_value_heads} x {mixer.head_dim} x 2"
    else:
        product = f"{times} x {mixer.num_key_value_heads} x ({mixer.head_dim} + {mixer.v_head_dim}) x 2"
    return f"{mixer.kind}: {product} = {times * entry:,} B per token"


def _conversation_line(model: ModelSpec, n: int) -> str:
    fmt = kv_format("fp16")
    terms = []
    for mixer, times in mixer_runs(model):
        kept, entry, each = mixer.tokens_kept(n), mixer.entry_bytes(fmt), mixer.kv_bytes(n, fmt)
        if not each:
            continue
        window = f"min({n:,}, {mixer.window:,})" if isinstance(mixer, SlidingWindow) else f"{kept:,}"
        terms.append(f"{times} x {entry:,} x {window}" if kept * entry == each else f"{times} x {each:,}")
    return f"c = {' + '.join(terms)} = {conversation_bytes(model, n, fmt):,} B" if terms else ""


def _bytes(model: ModelSpec, n: int) -> Step:
    fmt = kv_format("fp16")
    rows, lines = [], []
    for mixer, times in mixer_runs(model):
        kept, entry = mixer.tokens_kept(n), mixer.entry_bytes(fmt)
        rows.append((mixer.kind, times, mixer.words(), entry, kept, times * mixer.kv_bytes(n, fmt)))
        lines.append(_token_line(mixer, times, entry))
    per_token, each = token_bytes(model, fmt), conversation_bytes(model, n, fmt)
    latent = isinstance(growing_attention(model), LatentAttention)
    return Step(
        title="bytes of one token, of one conversation",
        why="Every layer keeps one latent and one rotary key per token, for all its heads together."
        if latent
        else "Every layer keeps one key and one value per key/value head. Query heads are not stored.",
        formula=_formulas(model, n),
        arithmetic=tuple(line for line in (*lines, _conversation_line(model, n)) if line),
        values=(
            Quantity(
                name="b", values=per_token, unit=f"B = {human_bytes(per_token)}", words="per token, 16 bits"
            ),
            Quantity(name="c", values=each, unit=f"B = {gib(each)} = {gb(each)}", words="per conversation"),
        ),
        tables=(
            Table(
                title="by kind of layer, 16 bits",
                header=("kind", "layers", "B per entry", "entries", "B", "shape"),
                rows=tuple(
                    (kind, times, entry, kept, total, words)
                    for kind, times, words, entry, kept, total in rows
                ),
            ),
        ),
        note=_bytes_note(model, latent),
        chapters="write 2 L d_model p in one place. That holds only where every query head has its own "
        "key/value head and N H = d_model. With grouped heads it overcounts by N / K; some models have N H other "
        "than d_model" + ("; a latent has no key/value heads at all." if latent else "."),
    )


def _bytes_note(model: ModelSpec, latent: bool) -> str:
    if latent:
        return f"How keys and values come out of the latent: `headcount explain latent --model {model.name}`."
    if any(isinstance(mixer, SlidingWindow) for mixer, _ in mixer_runs(model)):
        return "b is the price of a token while no window is full; past its window a layer keeps no more."
    return ""


def _symbols(model: ModelSpec, n: int) -> tuple[Symbol, ...]:
    runs = mixer_runs(model)
    keeping = [(mixer, times) for mixer, times in runs if grows(mixer)]
    found = [Symbol(symbol="L", meaning="layers that keep tokens", shape=f"{sum(t for _, t in keeping)}")]
    latent = next((mixer for mixer, _ in keeping if isinstance(mixer, LatentAttention)), None)
    if latent is not None:
        found += [
            Symbol(symbol="r", meaning="width of the latent of a token", shape=f"{latent.kv_lora_rank}"),
            Symbol(symbol="R", meaning="width of its rotary key", shape=f"{latent.qk_rope_head_dim}"),
        ]
    if any(isinstance(mixer, HeadedAttention) for mixer, _ in keeping):
        found.append(Symbol(symbol="K, H, H'", meaning="key/value heads; width of a key, of a value"))
    text = " ".join(_formulas(model, n))
    if "L_i" in text:
        found.append(Symbol(symbol="L_i, e_i", meaning="layers of kind i; bytes of one entry in one of them"))
    if "w_i" in text:
        found.append(Symbol(symbol="w_i", meaning="window of kind i; a kind without a window keeps all n"))
    if "t_i" in text:
        found.append(
            Symbol(symbol="t_i", meaning="entries that a layer of kind i keeps of n tokens (the table)")
        )
    return (
        *found,
        Symbol(symbol="p", meaning="bytes per number", shape="2 in 16 bits"),
        Symbol(symbol="n", meaning="tokens of the conversation", shape=f"{n:,}"),
    )


def _formats(model: ModelSpec, n: int) -> Step:
    rows = [
        (
            fmt.name,
            token_bytes(model, fmt),
            conversation_bytes(model, n, fmt),
            human_bytes(conversation_bytes(model, n, fmt)),
        )
        for fmt in fitting_formats(model)
        if fmt.name in SHOWN
    ]
    return Step(
        title="other formats, scales included",
        tables=(
            Table(title="", header=("format", "B per token", "B per conversation", ""), rows=tuple(rows)),
        ),
        chapters="let int8 halve the cache exactly. A format that keeps scales (q8_0: 2 bytes per 32 values) "
        "costs a little more "
        "than 8 bits, and no format is free of error.",
    )


def _heads(name: str, model: ModelSpec) -> Step | None:
    mixer = growing_attention(model)
    if isinstance(mixer, LatentAttention):
        return Step(
            title="other numbers of key/value heads: does not apply",
            why="The cached latent has no key/value heads, so no number of them changes its bytes. What the same heads "
            "would take if they were kept in full is in `headcount explain latent`.",
        )
    if not isinstance(mixer, HeadedAttention):
        return None
    fmt, own = kv_format("fp16"), mixer.num_key_value_heads
    rows = []
    for heads in dict.fromkeys((mixer.num_attention_heads, own, 8, 1)):
        try:
            other = read_model(name, kv_heads=heads) if heads != own else model
        except HeadcountError:
            continue
        change = other.parameters - model.parameters if model.parameters_known else None
        kind = {mixer.num_attention_heads: "MHA", 1: "MQA"}.get(heads, "GQA")
        rows.append(
            (heads, kind + (", as published" if heads == own else ""), token_bytes(other, fmt), change)
        )
    if len(rows) < 2:
        return None
    return Step(
        title="other numbers of key/value heads",
        why=f"{mixer.num_attention_heads} query heads may share fewer key/value heads. This is another model: "
        f"its weights must be "
        "trained for it.",
        tables=(Table(title="", header=("K", "kind", "B per token", "parameters"), rows=tuple(rows)),),
        chapters="say that sharing heads changes nothing in the number of parameters. W_K and W_V shrink with "
        "K: the last column. "
        "Quality changes as well, a little for groups, more for one head.",
    )


def counts(n: int) -> dict[str, tuple[int, int]]:
    """``(with a cache, without)`` over the generation of n tokens: K/V projections of one layer, scores of one head.

    Without a cache step t projects all t tokens again and computes all t x t scores.
    """
    return {
        "K and V projections": (n, n * (n + 1) // 2),
        "scores": (n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6),
    }


def _with_and_without(n: int) -> Step:
    rows = [(part, few, many, f"x {many / few:,.1f}") for part, (few, many) in counts(n).items()]
    return Step(
        title=f"generating {n:,} tokens with and without a cache",
        why="Step t attends from one new token to t keys. With a cache it projects that one token. Without, it "
        "runs the whole "
        "prefix of t tokens again.",
        formula=(
            'projections: n "against" sum_t t = n (n + 1) / 2',
            'scores: sum_t t = n (n + 1) / 2 "against" sum_t t^2 = n (n + 1) (2 n + 1) / 6',
        ),
        tables=(
            Table(
                title="per layer (projections), per head (scores)",
                header=("", "cached", "not cached", ""),
                rows=tuple(rows),
            ),
        ),
        chapters="call the waste 'O(n^2)'. The projections grow like n^2; the scores, computed again in full, "
        "like n^3.",
    )


def _check() -> Step | None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return None
    from headcount.explain.cached import cached_difference

    n, gap = cached_difference()
    return Step(
        title="check: the cache changes no output",
        why=f"Our attention over {n} random tokens, two key/value heads under four query heads, causal: once "
        f"over the whole "
        "sequence, once token by token against a growing cache.",
        values=(Quantity(name="largest difference", values=gap),),
    )


def _beside_the_weights(model: ModelSpec, n: int) -> Step:
    total, each = weight_bytes(model, "auto"), conversation_bytes(model, n, kv_format("fp16"))
    if not each:
        return Step(title="beside the weights", note="This model keeps nothing that grows.")
    return Step(
        title="beside the weights",
        formula=("N = W / c",),
        values=(
            Quantity(name="W", values=total, unit=f"B = {gib(total)} = {gb(total)}", words="weights"),
            Quantity(name="c", values=each, unit=f"B = {gib(each)} = {gb(each)}", words="one conversation"),
            Quantity(
                name="W / c",
                values=total / each,
                unit="conversations",
                words="until the cache weighs as much",
            ),
        ),
        chapters="call the cache 'the dominant memory cost'. It is, past that number of conversations; below it "
        "the weights are.",
        note="How many fit on a card: `headcount fit`.",
    )
