"""What nearly every GGUF decoder states, as Hugging Face keys: sizes, heads, vocabulary, windows, mixtures.

vocab_size           rows of token_embd            tie_word_embeddings   no output.weight
head_dim             rows of attn_q / heads        intermediate_size     columns of ffn_down
"""

from __future__ import annotations

from headcount.spec.gguf_facts import ATTENTION, Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SHARED_TENSORS = ("ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight")
FFN = ("ffn_gate", "ffn_up", "ffn_down")


def sizes(facts: Facts) -> dict[str, Any]:
    """Return the keys of embeddings, depth and context.

    ``rope_theta`` and the norm's epsilon are passed on where stated; no count depends on them.
    """
    hidden = facts.number("embedding_length", minimum=1)
    if facts.outside_extent("token_embd.weight", -1) != hidden:
        raise facts.damaged(f"embedding_length is {hidden}, token_embd has another width")
    facts.allow("output_norm.weight")
    out: dict[str, Any] = {
        "num_hidden_layers": facts.layer_count,
        "hidden_size": hidden,
        "vocab_size": facts.outside_extent("token_embd.weight", 0),
        "max_position_embeddings": facts.number("context_length", minimum=1),
        "tie_word_embeddings": not facts.has_outside("output.weight"),
    }
    for key, name in (
        ("rope.freq_base", "rope_theta"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ):
        value = facts.decimal(key)
        if value is not None:
            out[name] = value
    return out


def heads(facts: Facts, layers: list[int] | None = None, *, gated: bool = False) -> dict[str, Any]:
    """Return N, K and H of the attention ``layers`` (all by default), checked against the projections.

    ``gated``: attn_q also makes an output gate, so it has twice the rows (Qwen3-Next).
    """
    chosen = list(range(facts.layer_count)) if layers is None else layers
    if not chosen:
        raise facts.damaged("no layer holds attention tensors")
    query = _one(facts, "attention.head_count", chosen, facts.per_layer("attention.head_count"))
    if query < 1:
        raise facts.damaged("attention.head_count is 0")
    even_width = facts.number("embedding_length") // query
    key_width = facts.number("attention.key_length", even_width)
    value_width = facts.number("attention.value_length", even_width)
    if key_width < 1:
        raise facts.damaged(f"{query} heads share a width of {facts.number('embedding_length')}")
    if key_width != value_width:
        raise facts.unsupported(f"keys of {key_width} and values of {value_width} are not supported")
    stated = [facts.per_layer("attention.head_count_kv", query)[layer] for layer in chosen]
    if not any(stated):  # converters of 2026-11 write zeros for Granite 4; the tensors know better
        stated = [facts.extent("attn_k.weight", 0, chosen) // key_width] * len(chosen)
    kv = _one(facts, "attention.head_count_kv", range(len(stated)), stated)
    _check_projections(facts, chosen, (1 + gated) * query * key_width, kv * key_width)
    return {"num_attention_heads": query, "num_key_value_heads": kv, "head_dim": key_width}


def _one(facts: Facts, key: str, layers: Iterable[int], values: list[int]) -> int:
    distinct = {values[layer] for layer in layers}
    if len(distinct) > 1:
        raise facts.unsupported(f"{key} differs between layers ({len(distinct)} values)")
    return distinct.pop()


def _check_projections(facts: Facts, layers: list[int], query_rows: int, key_rows: int) -> None:
    """Compare the rows of the projections with what the head counts ask for."""
    if facts.has("attn_qkv.weight", layers):
        expected = [("attn_qkv.weight", query_rows + 2 * key_rows)]
    else:
        expected = [("attn_q.weight", query_rows), ("attn_k.weight", key_rows), ("attn_v.weight", key_rows)]
        facts.demand(*(name for name, _ in expected), layers=layers)
    facts.demand("attn_output.weight", layers=layers)
    for name, rows in expected:
        stored = facts.extent(name, 0, layers)
        if stored != rows:
            raise facts.damaged(f"{name} has {stored} rows, the head counts ask for {rows}")


def attention_biases(facts: Facts, layers: list[int] | None = None) -> tuple[bool, bool]:
    """Return whether query, key and value projections have biases, and whether the output one has."""
    fused = facts.has("attn_qkv.bias", layers)
    split = facts.all_or_none([f"{name}.bias" for name in ATTENTION[:3]], layers)
    return fused or split, facts.has("attn_output.bias", layers)


def one_bias_flag(facts: Facts, layers: list[int] | None = None) -> bool:
    """Return the flag of classes whose ``attention_bias`` covers all four projections."""
    qkv, output = attention_biases(facts, layers)
    if qkv != output:
        raise facts.unsupported(f"biases on {'queries' if qkv else 'the output'} only are not supported")
    return qkv


def even_heads(facts: Facts, keys: dict[str, Any]) -> None:
    """Refuse a head width other than D / N where the class has no key for it."""
    if keys["head_dim"] * keys["num_attention_heads"] != keys["hidden_size"]:
        raise facts.unsupported(
            f"{keys['num_attention_heads']} heads of {keys['head_dim']} do not make "
            f"{keys['hidden_size']}; the class has no other head width"
        )
    del keys["head_dim"]


def dense_width(facts: Facts, layers: list[int] | None = None, *, gated: bool = True) -> int:
    """Return F of the dense layers; gate and up may be fused into ffn_up of 2 F rows (Phi-3, GLM-4)."""
    chosen = list(range(facts.layer_count)) if layers is None else layers
    width = facts.extent("ffn_down.weight", -1, chosen)
    facts.demand("ffn_up.weight", "ffn_down.weight", layers=chosen)
    split_gate = facts.has("ffn_gate.weight", chosen)
    rows = facts.extent("ffn_up.weight", 0, chosen)
    matrices = 3 if split_gate or rows == 2 * width else 2
    if rows != (width if matrices == 2 or split_gate else 2 * width) or matrices != (3 if gated else 2):
        raise facts.unsupported(f"a feed-forward of {matrices} matrices, {rows} x {width}, is not its own")
    return width


def ffn_bias(facts: Facts, layers: list[int] | None = None, *, gated: bool = True) -> bool:
    """Return whether all matrices of the feed-forward have biases."""
    return facts.all_or_none([f"{name}.bias" for name in (FFN if gated else FFN[1:])], layers)


class Mixture:
    """The experts of a model, shared ones too: where they are, how many, how wide."""

    def __init__(self, facts: Facts, *, gated: bool = True) -> None:
        self.layers = facts.layers_with("ffn_down_exps.weight")
        if not self.layers:
            raise facts.damaged("tensor blk.*.ffn_down_exps.weight is missing")
        self.dense_layers = [i for i in range(facts.layer_count) if i not in set(self.layers)]
        self.experts = facts.number("expert_count", minimum=1)
        self.top_k = _one(facts, "expert_used_count", self.layers, facts.per_layer("expert_used_count"))
        self.width = facts.extent("ffn_down_exps.weight", -1)
        stored = facts.extent("ffn_down_exps.weight", 0)
        if stored != self.experts or not 1 <= self.top_k <= self.experts:
            raise facts.damaged(f"{self.experts} experts, {self.top_k} used, {stored} stored")
        facts.demand("ffn_gate_inp.weight", layers=self.layers)
        if not facts.has("ffn_gate_up_exps.weight", self.layers):
            facts.demand("ffn_up_exps.weight", layers=self.layers)
            if gated:
                facts.demand("ffn_gate_exps.weight", layers=self.layers)
        self.shared_width = 0
        if facts.has("ffn_down_shexp.weight", self.layers):
            facts.demand(*(SHARED_TENSORS if gated else SHARED_TENSORS[1:]), layers=self.layers)
            self.shared_width = facts.extent("ffn_down_shexp.weight", -1)
        self.router_bias = facts.has("exp_probs_b.bias", self.layers)

    def shared_experts(self, facts: Facts) -> int:
        """Return how many experts of the routed width the shared one is made of."""
        count, rest = divmod(self.shared_width, self.width)
        if rest:
            raise facts.unsupported(f"a shared expert of {self.shared_width} is no multiple of {self.width}")
        return count

    def leading_dense(self, facts: Facts) -> int:
        """Return the number of dense layers at the front; any other arrangement is refused."""
        count = len(self.dense_layers)
        if self.dense_layers != list(range(count)):
            raise facts.unsupported("dense layers are not all in front")
        stated = facts.optional("leading_dense_block_count")
        if stated is not None and stated != count:
            raise facts.damaged(f"leading_dense_block_count is {stated}, tensors show {count}")
        return count

    def everywhere(self, facts: Facts) -> None:
        """Refuse a model in which some layers are dense."""
        if self.dense_layers or self.shared_width:
            raise facts.unsupported(
                f"{len(self.dense_layers)} dense layers, shared width "
                f"{self.shared_width}; all layers must be plain mixtures"
            )


def windows(facts: Facts, *, period: int, window: int | None) -> dict[str, Any]:
    """Return ``sliding_window`` and ``layer_types`` of a model that mixes sliding and full layers.

    The pattern is the file's own array or period; ``period`` is the architecture's rule where it has none,
    one full layer in every ``period``. Without a window every layer is full.
    """
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * facts.layer_count}
    sliding = facts.flags("attention.sliding_window_pattern")
    if sliding is None:
        step = facts.number("attention.sliding_window_pattern", period, minimum=1)
        sliding = [(i + 1) % step != 0 for i in range(facts.layer_count)]
    kinds = ["sliding_attention" if one else "full_attention" for one in sliding]
    return {"sliding_window": window, "layer_types": kinds}
