"""Packed weights against published checkpoints: their tensor shapes, byte totals, and memory that vLLM reported."""

from __future__ import annotations

from typing import Any

import pytest

from headcount.cost.weights import rank_weights, weight_bytes, weight_format
from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec import catalogue
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec
from headcount.spec.module_names import matches
from headcount.spec.quantization import (
    AWQ,
    FP8_BLOCK,
    FP8_ROW,
    GPTQ,
    INT8_ROW,
    MXFP4,
    NF4,
    NVFP4,
    RECIPES,
    Quantization,
    read_quantization,
)
from headcount.spec.weight import EXPERTS, FEED_FORWARD, HEAD, Weight


def model(name: str, quantization: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    found = catalogue.entry(name)
    assert found is not None
    config = {**found["config"], **changes}
    if quantization is not None:
        config["quantization_config"] = quantization
    return spec_from_config(config, name=name, source="test")


def quantization(config: dict[str, Any], **outside: Any) -> Quantization:
    found = read_quantization({"quantization_config": config, **outside})
    assert found is not None
    return found


def linear(name: str, part: str = FEED_FORWARD) -> Weight:
    return Weight(name=name, part=part, shape=(256, 128), linear=True)


# One matrix: the tensors as the checkpoints list them -----------------------------------------------


def test_gptq_and_awq_matrix() -> None:
    # AutoGPTQ: qweight int32 [in / 8, out], qzeros int32 [in / 128, out / 8], scales fp16 [in / 128, out],
    # g_idx int32 [in] (https://docs.rs/ferrum-quantization/0.7.3/ferrum_quantization/gptq/index.html).
    assert GPTQ.matrix_bytes(11008, 4096) == 512 * 11008 * 4 + 32 * 1376 * 4 + 32 * 11008 * 2 + 4096 * 4
    # AutoAWQ has the same three, transposed in part, and no g_idx.
    assert AWQ.matrix_bytes(11008, 4096) == 512 * 11008 * 4 + 32 * 1376 * 4 + 32 * 11008 * 2


def test_nvfp4_matrix() -> None:
    # nvidia/DeepSeek-R1-0528-FP4, model.layers.0.mlp.down_proj: weight U8 [7168, 9216], weight_scale F8_E4M3
    # [7168, 1152], weight_scale_2 and input_scale F32 [].
    assert NVFP4.matrix_bytes(7168, 18432) == 7168 * 9216 + 7168 * 1152 + 4 + 4


def test_mxfp4_matrix() -> None:
    # openai/gpt-oss-20b: down_proj_blocks U8 [32, 2880, 90, 16], down_proj_scales U8 [32, 2880, 90].
    assert 32 * MXFP4.matrix_bytes(2880, 2880) == 32 * 2880 * 90 * 16 + 32 * 2880 * 90
    assert MXFP4.matrix_bytes(32, 32) * 8 / 32**2 == 4.25


def test_fp8_matrix() -> None:
    # deepseek-ai/DeepSeek-V3: kv_a_proj_with_mqa F8_E4M3 [576, 7168], weight_scale_inv F32 [5, 56].
    assert FP8_BLOCK.matrix_bytes(576, 7168) == 576 * 7168 + 5 * 56 * 4
    # fbgemm_fp8 of Llama 3.1 405B: one fp32 scale per output row.
    assert FP8_ROW.matrix_bytes(53248, 16384) == 53248 * 16384 + 53248 * 4
    assert INT8_ROW.matrix_bytes(3, 5) == 15 + 12


def test_nf4_bits_per_parameter() -> None:
    # QLoRA (arXiv 2305.14314, section 3): constants of 64-blocks take 0.5 bits a parameter, double quantised 0.127.
    plain = quantization({"quant_method": "bitsandbytes", "load_in_4bit": True}).rules[0].packing
    assert plain.matrix_bytes(4096, 4096) * 8 / 4096**2 == 4.5
    assert NF4.matrix_bytes(4096, 4096) * 8 / 4096**2 == pytest.approx(4.127, abs=0.0005)


def test_compressed_tensors_pack_quantized_matrix() -> None:
    # llm-compressor W4A16: weight_packed I32 [out, in / 8], weight_scale BF16 [out, in / 128], weight_shape I64 [2].
    weights = {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": 128,
        "symmetric": True,
        "actorder": None,
    }
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    packing = quantization(config).rules[0].packing
    assert packing.matrix_bytes(14336, 4096) == 14336 * 512 * 4 + 14336 * 32 * 2 + 16
    # Activation order adds weight_g_idx I32 [in]; asymmetric weights add weight_zero_point I32 [out / 8, in / 128].
    weights.update(actorder="group", symmetric=False)
    ordered = quantization(config).rules[0].packing
    assert (
        ordered.matrix_bytes(14336, 4096) - packing.matrix_bytes(14336, 4096)
        == 4096 * 4 + 14336 // 8 * 32 * 4
    )


def test_nvfp4_of_compressed_tensors_has_an_input_scale_only_with_fp4_activations() -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}

    def packed(inputs: dict[str, Any] | None) -> int:
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        config = {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        }
        return quantization(config).rules[0].packing.matrix_bytes(4096, 4096)

    # weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32 [1]; W4A4 also input_global_scale F32 [1].
    assert packed(None) == 4096 * 2048 + 4096 * 256 + 4
    assert packed({"num_bits": 4, "dynamic": "local"}) == 4096 * 2048 + 4096 * 256 + 8


# Whole checkpoints ---------------------------------------------------------------------------------


def test_gpt_oss_bytes() -> None:
    # metadata.total_size of model.safetensors.index.json of openai/gpt-oss-20b, and the sum over the 15 shards of -120b.
    assert weight_bytes(model("gpt-oss-20b")) == 13_761_264_768
    assert weight_bytes(model("gpt-oss-120b")) == 65_248_815_744


def test_deepseek_v3_bytes() -> None:
    # Tensor counts by dtype that Hugging Face lists for deepseek-ai/DeepSeek-V3, multi-token prediction included.
    published = 3_918_786_560 * 2 + 680_571_043_840 + 41_555_600 * 4

    def fp8(rows: int, columns: int) -> int:
        return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)

    # Layer 61, the prediction module: one more block, two tables of its own, a projection of 2 D and three norms.
    width, vocab = 7168, 129_280
    attention = (
        fp8(1536, width) + fp8(24576, 1536) + fp8(576, width) + fp8(32768, 512) + fp8(width, 16384)
    ) + 2 * (1536 + 512)
    experts = 257 * (2 * fp8(2048, width) + fp8(width, 2048)) + 256 * width * 2 + 256 * 4
    module = attention + experts + 2 * (2 + 3) * width + 2 * vocab * width * 2 + width * 2 * width * 2
    # The router's correction, 256 fp32 in each of 58 layers, is a buffer and no parameter.
    corrections = 58 * 256 * 4
    assert weight_bytes(model("deepseek-v3")) == published - module - corrections


def test_deepseek_v4_experts_are_fp4() -> None:
    # Shapes from https://github.com/NVIDIA-NeMo/Automodel/issues/2034. DeepSeek-V4-Flash: w1.weight I8 [2048, 2048],
    # w1.scale F8_E8M0 [2048, 128]; DeepSeek-V4-Flash-Base: w1.weight F8_E4M3 [2048, 4096], w1.scale F32 [16, 32].
    flash, base = model("deepseek-v4-flash"), model("deepseek-v4-flash", expert_dtype="fp8")
    w1 = next(w for w in flash.layers[0].weights if w.part == EXPERTS and w.name.endswith("w1"))
    assert (w1.shape, w1.copies) == ((2048, 4096), 256)
    assert flash.quantization is not None and base.quantization is not None
    small, large = flash.quantization.packing_of(w1, 0), base.quantization.packing_of(w1, 0)
    assert small is not None and small.matrix_bytes(2048, 4096) == 2048 * 2048 + 2048 * 128
    assert large is not None and large.matrix_bytes(2048, 4096) == 2048 * 4096 + 16 * 32 * 4
    # 43 layers x 256 experts x 3 matrices are nearly all of it; the rest is below 9 GB.
    experts = 43 * 256 * 3 * (2048 * 2048 + 2048 * 128)
    assert experts < weight_bytes(flash) < experts + 9 * 10**9
    # Compressors, indexer heads and hyper-connections are not fp8.
    plain = {
        w.name.replace("layers.{i}.", "")
        for layer, _ in flash.layer_runs()
        for w in layer.weights
        if w.linear and flash.quantization.packing_of(w, 0) is None
    }
    assert {"attn.compressor.wkv", "attn.indexer.weights_proj", "hc_attn_fn", "ffn.gate"} <= plain
    assert not {"attn.wq_a", "attn.wkv", "attn.indexer.wq_b", "attn.wo_a"} & plain
    with pytest.raises(UnsupportedModelError, match="expert_dtype 'int3'"):
        model("deepseek-v4-flash", expert_dtype="int3")


# What vLLM reported per GPU, GiB -------------------------------------------------------------------

_LOGS = "https://github.com/llm-d-incubation/llm-d-planner/blob/56dc5b76ca53/accuracy/results/v0.19.0/logs/"
_FP8_DYNAMIC = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}
_W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
        }
    },
}
# Llama 3.1 405B FP8 keeps all attention, and the first and last block, in bf16 (arXiv 2407.21783, section 6.2).
_FBGEMM = {
    "quant_method": "fbgemm_fp8",
    "activation_scale_ub": 1200.0,
    "modules_to_not_convert": [
        *(f"model.layers.{i}.self_attn.{name}_proj" for i in range(126) for name in "qkvo"),
        *(f"model.layers.{i}.mlp.{name}_proj" for i in (0, 125) for name in ("gate", "up", "down")),
    ],
}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
MEASURED = [
    ("llama-3.3-70b", _FP8_DYNAMIC, 2, 33.88, _LOGS + "fp8dyn-llama-3-3-70b--h100-80gb--tp2pp1dp1--8192.log"),
    ("llama-3.3-70b", _FP8_DYNAMIC, 4, 16.96, _LOGS + "fp8dyn-llama-3-3-70b--h100-80gb--tp4pp1dp1--8192.log"),
    ("llama-3.3-70b", _W8A8, 2, 33.88, _LOGS + "redhatai-llama-3-3-70b-i--h100-80gb--tp2pp1dp1--8192.log"),
    ("qwen2.5-7b", _W8A8, 1, 8.14, _LOGS + "w8a8-redhatai-qwen2-5-7b--h100-80gb--tp1pp1dp1--8192.log"),
    (
        "llama-3.1-405b",
        _FBGEMM,
        8,
        56.7677,
        "https://github.com/dstackai/benchmarks/blob/main/comparison/h100sxm5_vs_mi300x/issues/serving_issue_2.txt",
    ),
    ("qwen3-30b-a3b-fp8", None, 1, 29.09, "https://github.com/vllm-project/vllm/issues/25350"),
    # The log says 4-bit, not which of the two: they differ by 0.1 %.
    ("qwen2.5-7b", _AWQ, 1, 5.2032, "https://github.com/vllm-project/vllm/issues/13882"),
    ("qwen2.5-7b", _GPTQ, 1, 5.2032, "https://github.com/vllm-project/vllm/issues/13882"),
]


@pytest.mark.parametrize(("name", "config", "tp", "measured_gib", "source"), MEASURED)
def test_against_vllm_logs(
    name: str, config: dict[str, Any] | None, tp: int, measured_gib: float, source: str
) -> None:
    spec = model(name, config)
    predicted = rank_weights(spec, weight_format(spec), tp=tp, vocab_multiple=64).total / 2**30
    assert predicted == pytest.approx(measured_gib, rel=0.004), source


def test_llama_2_7b_gptq_file() -> None:
    # TheBloke/Llama-2-7B-GPTQ and -AWQ are 3.90 and 3.89 GB: AutoGPTQ writes g_idx, and an fp16 bias of zeros beside
    # every matrix, which vLLM does not keep.
    spec = model("llama-2-7b", _GPTQ)
    biases = 32 * 2 * (4 * 4096 + 2 * 11008 + 4096)
    assert round((weight_bytes(spec) + biases) / 1e9, 2) == 3.90
    awq = weight_bytes(model("llama-2-7b", _AWQ))
    assert round(awq / 1e9, 2) == 3.89
    assert weight_bytes(spec) - awq == 32 * 4 * (6 * 4096 + 11008)


def test_recipes_of_a_16_bit_model() -> None:
    # Llama-2-7B: 6,476,005,376 linear weights are packed; head, embedding and norms, 262,410,240, stay in fp16.
    plain, packed = 262_410_240, 6_476_005_376
    spec = model("llama-2-7b")
    assert plain + packed == 6_738_415_616
    assert weight_bytes(spec, "mxfp4") == plain * 2 + packed * 17 // 32
    assert weight_bytes(spec, "nvfp4") == plain * 2 + packed * 9 // 16 + 32 * 7 * 8
    assert weight_bytes(spec, "fp8") == plain * 2 + packed + 32 * 7 * 4
    for name in RECIPES:
        assert weight_bytes(spec, name) < weight_bytes(spec, "fp16")


# Which modules are packed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "name", "named"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.10.mlp.up_proj", False),
        ("mlp.gate", "model.layers.3.mlp.gate", True),
        ("mlp.gate", "model.layers.3.mlp.gate_proj", False),
        ("re:.*self_attn.*", "model.layers.3.self_attn.q_proj", True),
        ("re:self_attn", "model.layers.3.self_attn.q_proj", False),
        ("model.layers.*.self_attn", "model.layers.7.self_attn.o_proj", True),
        ("model.language_model.layers.2.mlp", "model.layers.2.mlp.down_proj", True),
        ("language_model.model.layers.2.mlp", "model.layers.2.mlp.down_proj", True),
    ],
)
def test_ignore_entries(entry: str, name: str, named: bool) -> None:
    assert matches(name, (entry,)) is named


def test_ignore_entry_that_is_no_pattern() -> None:
    with pytest.raises(ModelFileError, match="not a regular expression"):
        matches("model.norm", ("re:(",))


def test_gptq_dynamic_of_gptqmodel() -> None:
    # Qwen's GPTQ-Int4 mixtures of experts: ``-:`` patterns leave attention and the shared expert in 16 bits.
    found = quantization(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "dynamic": {
                "-:.*attn.*": {},
                "-:.*shared_expert.*": {},
                r"+:.*\.up_proj": {"bits": 8, "group_size": 64},
            },
        }
    )
    assert found.packing_of(linear("model.layers.{i}.self_attn.q_proj"), 0) is None
    assert found.packing_of(linear("model.layers.{i}.mlp.shared_expert.up_proj"), 0) is None
    expert = found.packing_of(linear("model.layers.{i}.mlp.experts.*.down_proj"), 5)
    wide = found.packing_of(linear("model.layers.{i}.mlp.experts.*.up_proj"), 5)
    assert expert is not None and (expert.bits, expert.group) == (4, 128)
    assert wide is not None and (wide.bits, wide.group, wide.zero_bits) == (8, 64, 8)
    with pytest.raises(ModelFileError, match="dynamic"):
        quantization({"quant_method": "gptq", "dynamic": ["-:.*attn.*"]})


def test_gptq_that_packs_some_modules() -> None:
    found = quantization(
        {
            "quant_method": "gptq",
            "bits": 4,
            "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]],
        }
    )
    assert found.packing_of(linear("model.layers.{i}.mlp.up_proj"), 0) is not None
    assert found.packing_of(linear("model.layers.{i}.mlp.down_proj"), 0) is None


def test_group_size_minus_one_is_a_whole_row() -> None:
    packing = quantization({"quant_method": "gptq", "bits": 8, "group_size": -1}).rules[0].packing
    assert packing.matrix_bytes(8, 1024) == 8 * 1024 + 8 * 2 + 8 + 1024 * 4


def test_head_is_packed_only_when_the_list_leaves_it_in() -> None:
    head = linear("lm_head", HEAD)
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}
    base = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    assert quantization({**base, "ignore": []}).packing_of(head, 0) is not None
    assert quantization({**base, "ignore": ["lm_head"]}).packing_of(head, 0) is None
    assert quantization(base).packing_of(head, 0) is None
    assert quantization({"quant_method": "awq", "bits": 4}).packing_of(head, 0) is None


def test_mixed_precision_of_modelopt() -> None:
    found = quantization(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "ignore": ["lm_head"],
            "quantized_layers": {
                "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16},
                "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
            },
        }
    )
    up = found.packing_of(linear("model.layers.{i}.mlp.up_proj"), 0)
    query = found.packing_of(linear("model.layers.{i}.self_attn.q_proj"), 0)
    assert up == NVFP4
    # weight_scale and input_scale, fp32 each.
    assert query is not None and query.matrix_bytes(64, 64) == 64 * 64 + 8
    assert found.packing_of(linear("model.layers.{i}.mlp.up_proj"), 1) is None


def test_old_files_that_name_no_method() -> None:
    assert quantization({"load_in_8bit": True}).rules[0].packing.bits == 8
    assert quantization({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}).rules[
        0
    ].packing == (NVFP4)
    assert read_quantization({}) is None


def test_kv_cache_scheme() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}}
    assert quantization(config).kv_cache_bits == 8
    nested = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    assert quantization(nested).kv_cache_bits == 8


def test_static_fp8_has_input_scales() -> None:
    dynamic = quantization({"quant_method": "fp8", "activation_scheme": "dynamic"}).rules[0].packing
    static = quantization({"quant_method": "fp8", "activation_scheme": "static"}).rules[0].packing
    assert static.matrix_bytes(64, 64) - dynamic.matrix_bytes(64, 64) == 4


def test_calibrated_but_unpacked_groups_stay_in_16_bits() -> None:
    group = {"targets": ["Linear"], "format": "dense", "weights": {"num_bits": 8, "strategy": "channel"}}
    found = quantization(
        {"quant_method": "compressed-tensors", "ignore": [], "config_groups": {"group_0": group}}
    )
    assert found.packing_of(linear("model.layers.{i}.mlp.up_proj"), 0) is None


# An abridged config is not taken for a whole one ---------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "fbgemm_fp8"},
        {"quant_method": "compressed-tensors", "weights": "int8"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_algo": "NVFP4"},
    ],
)
def test_missing_exception_lists_are_said(config: dict[str, Any]) -> None:
    (note,) = quantization(config).notes
    assert "lists no modules left in 16 bits" in note


def test_missing_group_size_is_said() -> None:
    notes = quantization({"quant_method": "compressed-tensors", "weights": "int4"}).notes
    assert any("128 is assumed" in note for note in notes)


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},  # DeepSeek-V3 has no list
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    ],
)
def test_whole_configs_need_no_note(config: dict[str, Any]) -> None:
    assert quantization(config).notes == ()


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ("int8", ModelFileError, "must be an object, not str"),
        ({"quant_method": "aqlm"}, UnsupportedModelError, "'aqlm' is not known; known: awq"),
        ({"bits": 4}, UnsupportedModelError, "'unnamed'"),
        ({"quant_method": "gptq", "bits": 16}, ModelFileError, "bits '16' must be a whole number 2 to 8"),
        ({"quant_method": "awq", "group_size": "x"}, ModelFileError, "group_size 'x'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, ModelFileError, "weight_block_size '0'"),
        ({"quant_method": "bitsandbytes"}, ModelFileError, "neither load_in_4bit nor load_in_8bit"),
        ({"quant_method": "compressed-tensors"}, ModelFileError, "no config_groups"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {}}},
            ModelFileError,
            "'a' has no weights",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"strategy": "swirl"}}},
            },
            UnsupportedModelError,
            "strategy 'swirl'",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "marlin-24",
                "config_groups": {"a": {"weights": {}}},
            },
            UnsupportedModelError,
            "sparse",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"strategy": "block", "block_structure": [0, 1]}}},
            },
            ModelFileError,
            "block_structure",
        ),
        ({"quant_method": "modelopt", "quant_algo": "INT1"}, UnsupportedModelError, "'INT1'"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            ModelFileError,
            "no quantized_layers",
        ),
    ],
)
def test_refusals(config: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        read_quantization({"quantization_config": config})
    assert "\n" not in str(caught.value)
