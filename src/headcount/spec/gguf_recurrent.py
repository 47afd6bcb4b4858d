"""GGUF architectures with recurrent layers (Mamba, delta net, short convolution), as Hugging Face keys.

Which layers are recurrent shows in their tensors: ``ssm_in``, ``ssm_out`` or ``shortconv.conv`` against
``attn_q``. ``<architecture>.ssm.*`` holds conv_kernel, state_size, inner_size, group_count and time_step_rank
(the number of heads, or the rank of dt in Mamba 1).
"""

from __future__ import annotations

from headcount.record import Record
from headcount.spec.gguf_decoder import (
    Mixture,
    dense_width,
    even_heads,
    ffn_bias,
    heads,
    one_bias_flag,
    sizes,
)
from headcount.spec.gguf_dense import PRE_NORMS, demand_norms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.gguf_facts import Facts


class Scan(Record):
    """Sizes of a state-space layer."""

    kernel: int
    state: int
    inner: int
    rank: int
    groups: int

    @property
    def head_dim(self) -> int:
        """Width of one of ``rank`` heads (Mamba 2, delta net)."""
        return self.inner // self.rank


def _scan(facts: Facts, *, headed: bool = True) -> Scan:
    """Read ``ssm.*`` and check it against the convolution's width: inner, or inner + 2 groups x state."""
    scan = Scan(
        kernel=facts.number("ssm.conv_kernel", minimum=1),
        state=facts.number("ssm.state_size", minimum=1),
        inner=facts.number("ssm.inner_size", minimum=1),
        rank=facts.number("ssm.time_step_rank", minimum=1),
        groups=facts.number("ssm.group_count", minimum=1) if headed else 0,
    )
    channels = scan.inner + 2 * scan.groups * scan.state
    stored = (facts.extent("ssm_conv1d.weight", 0), facts.extent("ssm_conv1d.weight", -1))
    if stored != (channels, scan.kernel) or (headed and scan.inner % scan.rank):
        raise facts.damaged(
            f"ssm_conv1d is {stored[0]} x {stored[1]}, ssm.* ask for {channels} x {scan.kernel}; "
            f"{scan.rank} heads share {scan.inner}"
        )
    return scan


def _expand(facts: Facts, scan: Scan, hidden: int) -> int:
    times, rest = divmod(scan.inner, hidden)
    if rest:
        raise facts.unsupported(f"an inner size of {scan.inner} is no multiple of {hidden}")
    return times


def _check_mamba2(facts: Facts, scan: Scan, layers: list[int], *, norm: bool = True) -> bool:
    """Demand the tensors of Mamba 2 layers; return whether the convolution has a bias."""
    facts.demand("ssm_a", "ssm_d", "ssm_dt.bias", "ssm_in.weight", "ssm_out.weight", layers=layers)
    if norm:
        facts.demand("ssm_norm.weight", layers=layers)
    rows = 2 * scan.inner + 2 * scan.groups * scan.state + scan.rank
    if facts.extent("ssm_in.weight", 0) != rows:
        raise facts.damaged(f"ssm_in has {facts.extent('ssm_in.weight', 0)} rows, ssm.* ask for {rows}")
    return facts.has("ssm_conv1d.bias", layers)


def mamba(facts: Facts) -> dict[str, Any]:
    """Mamba, and Falcon-Mamba, which normalises dt, B and C without parameters."""
    scan = _scan(facts, headed=False)
    keys = sizes(facts)
    demand_norms(facts, ("attn_norm",))
    facts.demand("ssm_a", "ssm_d", "ssm_dt.weight", "ssm_dt.bias", "ssm_in.weight", "ssm_out.weight")
    facts.demand("ssm_x.weight")
    del keys["max_position_embeddings"]  # no positions: the file's number is a converter's constant
    return {
        **keys,
        "model_type": "falcon_mamba" if facts.true("ssm.dt_b_c_rms") else "mamba",
        "state_size": scan.state,
        "conv_kernel": scan.kernel,
        "time_step_rank": scan.rank,
        "expand": _expand(facts, scan, keys["hidden_size"]),
        "intermediate_size": scan.inner,
        "use_bias": facts.all_or_none(["ssm_in.bias", "ssm_out.bias"]),
        "use_conv_bias": facts.has("ssm_conv1d.bias"),
    }


def mamba2(facts: Facts) -> dict[str, Any]:
    """Mamba 2: heads, groups, and a gated norm."""
    keys = sizes(facts)
    scan = _scan(facts)
    demand_norms(facts, ("attn_norm",))
    conv_bias = _check_mamba2(facts, scan, list(range(facts.layer_count)))
    del keys["max_position_embeddings"]
    return {
        **keys,
        "model_type": "mamba2",
        "state_size": scan.state,
        "conv_kernel": scan.kernel,
        "num_heads": scan.rank,
        "head_dim": scan.head_dim,
        "n_groups": scan.groups,
        "expand": _expand(facts, scan, keys["hidden_size"]),
        "use_bias": facts.all_or_none(["ssm_in.bias", "ssm_out.bias"]),
        "use_conv_bias": conv_bias,
    }


def _every(facts: Facts, layers: list[int], what: str) -> tuple[int, int]:
    """Return ``(period, offset)`` of evenly spaced layers."""
    offset = layers[0]
    period = layers[1] - offset if len(layers) > 1 else facts.layer_count
    if offset >= period or layers != list(range(offset, facts.layer_count, period)):
        raise facts.unsupported(f"{what} at irregular layers")
    return period, offset


def jamba(facts: Facts) -> dict[str, Any]:
    """Jamba: attention once per period, Mamba 1 with norms elsewhere, experts in every other layer."""
    attention = facts.layers_with("attn_q.weight")
    recurrent = facts.layers_with("ssm_in.weight")
    keys = {"model_type": "jamba", **sizes(facts), **heads(facts, attention)}
    even_heads(facts, keys)
    scan = _scan(facts, headed=False)
    demand_norms(facts, PRE_NORMS)
    facts.demand("ssm_a", "ssm_d", "ssm_dt.weight", "ssm_dt.bias", "ssm_out.weight", layers=recurrent)
    facts.demand("ssm_x.weight", "ssm_dt_norm.weight", layers=recurrent)
    facts.demand("ssm_b_norm.weight", "ssm_c_norm.weight", layers=recurrent)
    if sorted([*attention, *recurrent]) != list(range(facts.layer_count)):
        raise facts.damaged("a layer holds neither attention nor a state, or both")
    period, offset = _every(facts, attention, "attention")
    keys.update(
        attn_layer_period=period,
        attn_layer_offset=offset,
        mamba_d_state=scan.state,
        mamba_d_conv=scan.kernel,
        mamba_dt_rank=scan.rank,
        mamba_expand=_expand(facts, scan, keys["hidden_size"]),
        mamba_conv_bias=facts.has("ssm_conv1d.bias", recurrent),
        mamba_proj_bias=facts.all_or_none(["ssm_in.bias", "ssm_out.bias"], recurrent),
    )
    if not facts.number("expert_count", 0):
        return {**keys, "intermediate_size": dense_width(facts), "num_experts": 1, "num_experts_per_tok": 1}
    mixture = Mixture(facts)
    if mixture.shared_width:
        raise facts.unsupported("shared experts")
    expert_period, expert_offset = _every(facts, mixture.layers, "mixtures")
    keys.update(
        intermediate_size=mixture.width,
        num_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        expert_layer_period=expert_period,
        expert_layer_offset=expert_offset,
    )
    if mixture.dense_layers and dense_width(facts, mixture.dense_layers) != mixture.width:
        raise facts.unsupported("dense layers of another width than the experts")
    return keys


def granite_hybrid(facts: Facts) -> dict[str, Any]:
    """Granite 4: Mamba 2 and attention layers, a shared feed-forward in each, experts beside it or none."""
    attention = facts.layers_with("attn_q.weight")
    recurrent = facts.layers_with("ssm_in.weight")
    if sorted([*attention, *recurrent]) != list(range(facts.layer_count)):
        raise facts.damaged("a layer holds neither attention nor a state, or both")
    keys = {"model_type": "granitemoehybrid", **sizes(facts), **heads(facts, attention)}
    even_heads(facts, keys)
    demand_norms(facts, PRE_NORMS)
    scan = _scan(facts)
    conv_bias = _check_mamba2(facts, scan, recurrent)
    keys.update(
        layer_types=["attention" if i in set(attention) else "mamba" for i in range(facts.layer_count)],
        attention_bias=one_bias_flag(facts, attention),
        mamba_d_state=scan.state,
        mamba_d_conv=scan.kernel,
        mamba_n_heads=scan.rank,
        mamba_d_head=scan.head_dim,
        mamba_n_groups=scan.groups,
        mamba_expand=_expand(facts, scan, keys["hidden_size"]),
        mamba_conv_bias=conv_bias,
        mamba_proj_bias=facts.all_or_none(["ssm_in.bias", "ssm_out.bias"], recurrent),
    )
    if not facts.number("expert_count", 0):
        width = dense_width(facts)
        return {
            **keys,
            "intermediate_size": width,
            "shared_intermediate_size": width,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
        }
    mixture = Mixture(facts)
    if mixture.dense_layers or not mixture.shared_width:
        raise facts.unsupported("mixtures need a shared expert in every layer")
    keys.update(
        intermediate_size=mixture.width,
        shared_intermediate_size=mixture.shared_width,
        num_local_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
    )
    return keys


def falcon_h1(facts: Facts) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    keys = {"model_type": "falcon_h1", **sizes(facts), **heads(facts)}
    demand_norms(facts, ("attn_norm",))
    facts.demand("ffn_norm")  # without .weight: the name llama.cpp asks for
    scan = _scan(facts)
    norm = facts.has("ssm_norm.weight")
    conv_bias = _check_mamba2(facts, scan, list(range(facts.layer_count)), norm=norm)
    keys.update(
        intermediate_size=dense_width(facts),
        attention_bias=one_bias_flag(facts),
        mlp_bias=ffn_bias(facts),
        mamba_d_ssm=scan.inner,
        mamba_d_state=scan.state,
        mamba_d_conv=scan.kernel,
        mamba_n_heads=scan.rank,
        mamba_d_head=scan.head_dim,
        mamba_n_groups=scan.groups,
        mamba_conv_bias=conv_bias,
        mamba_rms_norm=norm,
        mamba_proj_bias=facts.all_or_none(["ssm_in.bias", "ssm_out.bias"]),
    )
    return keys


def nemotron_h(facts: Facts) -> dict[str, Any]:
    """Nemotron-H, Nemotron 3: each layer is one of state, attention, feed-forward and mixture."""
    attention = facts.layers_with("attn_q.weight")
    recurrent = facts.layers_with("ssm_in.weight")
    mixtures = facts.layers_with("ffn_down_exps.weight")
    dense = facts.layers_with("ffn_down.weight")
    kinds = {
        **dict.fromkeys(recurrent, "mamba"),
        **dict.fromkeys(attention, "attention"),
        **dict.fromkeys(dense, "mlp"),
        **dict.fromkeys(mixtures, "moe"),
    }
    if sorted([*attention, *recurrent, *mixtures, *dense]) != list(range(facts.layer_count)):
        raise facts.damaged("a layer is not exactly one of state, attention, feed-forward and mixture")
    keys = {"model_type": "nemotron_h", **sizes(facts), **heads(facts, attention)}
    demand_norms(facts, ("attn_norm",))
    scan = _scan(facts)
    conv_bias = _check_mamba2(facts, scan, recurrent)
    if one_bias_flag(facts, attention) or ffn_bias(facts, dense, gated=False):
        raise facts.unsupported("biases")
    keys.update(
        layers_block_type=[kinds[i] for i in range(facts.layer_count)],
        ssm_state_size=scan.state,
        conv_kernel=scan.kernel,
        mamba_num_heads=scan.rank,
        mamba_head_dim=scan.head_dim,
        n_groups=scan.groups,
        use_conv_bias=conv_bias,
        mamba_proj_bias=facts.all_or_none(["ssm_in.bias", "ssm_out.bias"], recurrent),
        mlp_bias=False,
        num_nextn_predict_layers=0,
    )
    if dense:
        keys["intermediate_size"] = dense_width(facts, dense, gated=False)
    if mixtures:
        mixture = Mixture(facts, gated=False)
        keys.update(
            n_routed_experts=mixture.experts,
            num_experts_per_tok=mixture.top_k,
            moe_intermediate_size=mixture.width,
            moe_shared_expert_intermediate_size=mixture.shared_width,
            n_shared_experts=facts.number("expert_shared_count", 1),
            moe_latent_size=_latent(facts, mixtures),
        )
    return keys


def _latent(facts: Facts, layers: list[int]) -> int | None:
    """Width of the latent that Nemotron 3 Super's experts work in; None for experts of the model's width."""
    if not facts.all_or_none(["ffn_latent_down.weight", "ffn_latent_up.weight"], layers):
        return None
    return facts.extent("ffn_latent_down.weight", 0)


def lfm2(facts: Facts) -> dict[str, Any]:
    """LFM2: short convolutions and attention; the final norm is stored as token_embd_norm in most files."""
    attention = facts.layers_with("attn_q.weight")
    recurrent = facts.layers_with("shortconv.conv.weight")
    if sorted([*attention, *recurrent]) != list(range(facts.layer_count)):
        raise facts.damaged("a layer holds neither attention nor a convolution, or both")
    keys = {"model_type": "lfm2", **sizes(facts), **heads(facts, attention)}
    even_heads(facts, keys)
    demand_norms(facts, PRE_NORMS)
    facts.demand("attn_q_norm.weight", "attn_k_norm.weight", layers=attention)
    facts.demand("shortconv.in_proj.weight", "shortconv.out_proj.weight", layers=recurrent)
    facts.has_outside("token_embd_norm.weight")
    if facts.number("attention.sliding_window", 0):
        raise facts.unsupported("a sliding window")
    kernel = facts.number("shortconv.l_cache", minimum=1)
    if recurrent and facts.extent("shortconv.conv.weight", -1) != kernel:
        raise facts.damaged(f"shortconv.conv is not {kernel} wide, as shortconv.l_cache says")
    keys.update(
        layer_types=["full_attention" if i in set(attention) else "conv" for i in range(facts.layer_count)],
        conv_L_cache=kernel,
        conv_bias=facts.all_or_none(
            [f"shortconv.{name}.bias" for name in ("conv", "in_proj", "out_proj")], recurrent
        ),
    )
    if facts.architecture == "lfm2":
        return {**keys, "intermediate_size": dense_width(facts), "block_auto_adjust_ff_dim": False}
    mixture = Mixture(facts)
    dense = mixture.dense_layers
    if mixture.shared_width:
        raise facts.unsupported("shared experts")
    keys.update(
        model_type="lfm2_moe",
        intermediate_size=dense_width(facts, dense) if dense else facts.number("feed_forward_length"),
        moe_intermediate_size=mixture.width,
        num_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        num_dense_layers=mixture.leading_dense(facts),
        use_expert_bias=mixture.router_bias,
    )
    return keys


def delta_net(facts: Facts) -> dict[str, Any]:
    """Qwen3-Next and Qwen 3.5: gated delta nets, and attention with an output gate in every fourth layer."""
    names = {"qwen3next": "qwen3_next", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text"}
    attention = facts.layers_with("attn_q.weight")
    recurrent = facts.layers_with("ssm_out.weight")
    if sorted([*attention, *recurrent]) != list(range(facts.layer_count)):
        raise facts.damaged("a layer holds neither attention nor a state, or both")
    keys = {
        "model_type": names[facts.architecture],
        **sizes(facts),
        **heads(facts, attention, gated=True),
    }
    demand_norms(facts, ("attn_norm", "post_attention_norm"))
    facts.demand("attn_q_norm.weight", "attn_k_norm.weight", layers=attention)
    facts.demand("ssm_a", "ssm_dt.bias", "ssm_norm.weight", layers=recurrent)
    if not facts.has("ssm_in.weight", recurrent):  # the first files keep all four projections in one
        facts.demand("attn_qkv.weight", "attn_gate.weight", layers=recurrent)
    if not facts.has("ssm_ba.weight", recurrent):
        facts.demand("ssm_alpha.weight", "ssm_beta.weight", layers=recurrent)
    scan = _scan(facts)
    kinds = [
        "full_attention" if i in set(attention) else "linear_attention" for i in range(facts.layer_count)
    ]
    keys.update(
        layer_types=kinds,
        attention_bias=one_bias_flag(facts, attention),
        linear_conv_kernel_dim=scan.kernel,
        linear_key_head_dim=scan.state,
        linear_num_key_heads=scan.groups,
        linear_num_value_heads=scan.rank,
        linear_value_head_dim=scan.head_dim,
    )
    if facts.architecture == "qwen35":
        return {**keys, "intermediate_size": dense_width(facts)}
    mixture = Mixture(facts)
    if mixture.dense_layers or not mixture.shared_width:
        raise facts.unsupported("mixtures need a shared expert in every layer")
    facts.demand("ffn_gate_inp_shexp.weight")
    keys.update(
        num_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        moe_intermediate_size=mixture.width,
        shared_expert_intermediate_size=mixture.shared_width,
    )
    if facts.architecture == "qwen3next":
        keys.update(decoder_sparse_step=1, mlp_only_layers=[])
        keys["intermediate_size"] = facts.number("feed_forward_length", mixture.width) or mixture.width
    return keys


TRANSLATIONS = {
    "mamba": mamba,
    "mamba2": mamba2,
    "jamba": jamba,
    "granitehybrid": granite_hybrid,
    "falcon-h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": nemotron_h,
    "lfm2": lfm2,
    "lfm2moe": lfm2,
    "qwen3next": delta_net,
    "qwen35": delta_net,
    "qwen35moe": delta_net,
}


def translate(facts: Facts) -> dict[str, Any]:
    """Return the Hugging Face config of one of these architectures."""
    return TRANSLATIONS[facts.architecture](facts)
