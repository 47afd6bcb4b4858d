"""The ``vllm serve`` line against the released packages: every option and value of it is one that the release has.

``data/launch/vllm_flags.json`` lists what nine releases accept, read in their packages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines.base import Case, Launch, Layout, Settings
from headcount.engines.vllm.engine import Vllm
from headcount.errors import UsageError
from headcount.hardware import accelerator
from headcount.report.launch.read_flags import options_of
from headcount.spec.reader import read_model

RELEASES: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "data" / "launch" / "vllm_flags.json").read_text()
)["releases"]
# Packed on load under its own name until 0.29; an error there since 0.33 ("no longer supports online quantization").
ONLINE_BY_METHOD = {"fp8", "bitsandbytes"}


def launch(
    version: str = "0.33.0", model: str = "llama-3.1-8b", concurrency: int = 10, **asked: Any
) -> Launch:
    layout = asked.pop("layout", Layout())
    case = Case(
        model=read_model(model),
        accelerator=accelerator(asked.pop("gpu", "h100-80gb")),
        layout=layout,
        context=asked.pop("context", 4096),
        settings=Settings(**asked),
    )
    return Vllm(version).launch(case, model="org/name", concurrency=concurrency)


def options(line: Launch) -> dict[str, str | None]:
    return dict(options_of(line.argv[3:]))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    "weights", ["auto", "fp16", "bf16", "fp8", "fp8_block", "nf4", "mxfp4", "awq", "int8", "nvfp4"]
)
def test_every_option_and_value_is_the_releases_own(version: str, weights: str) -> None:
    accepts = RELEASES[version]
    for kv in ("auto", "bf16", "fp16", "fp8", "int8_per_token_head", "nvfp4"):
        try:
            found = options(launch(version, weights=weights, kv=kv, layout=Layout(tp=2, pp=2)))
        except UsageError as error:
            # Refused only where the release has no such format.
            assert kv not in accepts["kv_cache_dtype"], str(error)
            assert kv not in ("auto", "fp16", "bf16", "fp8")
            continue
        assert set(found) <= set(accepts["flags"])
        assert found["--kv-cache-dtype"] in accepts["kv_cache_dtype"]
        method = found.get("--quantization")
        if method is None:
            continue
        assert method in accepts["quantization"]
        if accepts["online_shorthands"]:
            assert method in accepts["online_shorthands"] or (version, method) == ("0.25.1", "bitsandbytes")
        else:
            assert method in ONLINE_BY_METHOD


@pytest.mark.parametrize(
    ("version", "weights", "method"),
    [
        ("0.33.0", "fp8", "fp8_per_tensor"),
        ("0.25.1", "fp8", "fp8_per_tensor"),
        ("0.19.1", "fp8", "fp8"),
        ("0.33.0", "fp8_block", "fp8_per_block"),
        ("0.19.1", "fp8_block", None),
        ("0.33.0", "mxfp4", "mxfp4"),
        ("0.25.1", "mxfp4", None),
        ("0.33.0", "nf4", None),
        ("0.19.1", "nf4", "bitsandbytes"),
        ("0.33.0", "awq", None),
        ("0.33.0", "gptq", None),
        ("0.33.0", "nvfp4", None),
        ("0.33.0", "int8", None),
        ("0.33.0", "auto", None),
    ],
)
def test_only_what_is_packed_on_load_is_asked_for(version: str, weights: str, method: str | None) -> None:
    assert options(launch(version, weights=weights)).get("--quantization") == method


def test_a_packed_checkpoint_is_never_packed_again() -> None:
    found = options(launch(model="deepseek-v3", weights="fp8", layout=Layout(tp=8), gpu="h200"))
    assert "--quantization" not in found
    assert "--dtype" not in options(
        launch(model="deepseek-v3", weights="bf16", layout=Layout(tp=8), gpu="h200")
    )


def test_every_figure_of_the_plan_is_said() -> None:
    line = launch(layout=Layout(tp=2, pp=2, dp=3), context=8192)
    assert line.argv[:3] == ("vllm", "serve", "org/name")
    assert options(line) == {
        "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "2",
        "--max-model-len": "8192",
        "--gpu-memory-utilization": "0.92",
        "--kv-cache-dtype": "auto",
        "--max-num-seqs": "1024",
        "--max-num-batched-tokens": "8192",
    }
    assert (line.image, line.port, line.health) == ("vllm/vllm-openai:v0.33.0", 8000, "/health")
    assert options(launch("0.19.1"))["--gpu-memory-utilization"] == "0.9"
    assert options(launch(reserve=0.1))["--gpu-memory-utilization"] == "0.9"
    assert options(launch(utilization=0.123456))["--gpu-memory-utilization"] == "0.123456"


def test_more_conversations_than_sequences_is_refused() -> None:
    assert options(launch(max_num_seqs=10, concurrency=10))["--max-num-seqs"] == "10"
    with pytest.raises(UsageError, match="the plan holds 11"):
        launch(max_num_seqs=10, concurrency=11)


def test_own_arguments_are_passed_on() -> None:
    given = (
        ("block_size", "32"),
        ("enforce-eager", ""),
        ("enable-prefix-caching", "false"),
        ("no-async-scheduling", "true"),
        ("kv-cache-memory-bytes", "10GiB"),
        ("max-model-len", "16384"),
        ("speculative-method", "mtp"),
        ("num-speculative-tokens", "2"),
    )
    found = options(launch(arguments=given))
    assert found["--block-size"] == "32"
    assert found["--kv-cache-memory-bytes"] == str(10 * 2**30)
    assert found["--max-model-len"] == "16384"
    assert json.loads(str(found["--speculative-config"])) == {"method": "mtp", "num_speculative_tokens": 2}
    for bare in ("--enforce-eager", "--no-enable-prefix-caching", "--no-async-scheduling"):
        assert found[bare] is None
    with pytest.raises(UsageError, match="eagle3 drafts with a checkpoint of its own"):
        launch(arguments=(("speculative-method", "eagle3"), ("num-speculative-tokens", "2")))


def test_a_context_past_the_positions_needs_the_variable() -> None:
    assert launch(context=131072).environment == ()
    assert launch(context=131073).environment == (("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"),)


def test_32_bit_weights_would_double_the_cache() -> None:
    with pytest.raises(UsageError, match="keeps its cache in 32 bits"):
        launch(weights="fp32")
    assert options(launch(weights="fp32", kv="fp8"))["--dtype"] == "float32"


def test_names_that_are_no_model() -> None:
    case = Case(
        model=read_model("llama-3.1-8b"),
        accelerator=accelerator("h100-80gb"),
        layout=Layout(),
        context=4096,
        settings=Settings(),
    )
    for name, words in (("-x", "option"), ("a\nb", "control"), ("", "empty"), ("m.gguf", "loads no GGUF")):
        with pytest.raises(UsageError, match=words):
            Vllm().launch(case, model=name, concurrency=1)
    assert Vllm("0.19.1").launch(case, model="m.gguf", concurrency=1).argv[2] == "m.gguf"
    amd = case.replace(accelerator=accelerator("mi300x"))
    assert Vllm().launch(amd, model="a/b", concurrency=1).image == "vllm/vllm-openai-rocm:v0.33.0"
    assert Vllm("0.11.2").launch(amd, model="a/b", concurrency=1).image == ""


def test_cache_formats_by_the_name_that_the_release_has() -> None:
    """config/cache.py CacheDType: nvfp4_ds_mla for sparse models from 0.30, packed keys and values from 0.20."""
    sparse = launch("0.30.0", "deepseek-v3.2", gpu="b200", layout=Layout(tp=8), kv="nvfp4")
    assert options(sparse)["--kv-cache-dtype"] == "nvfp4_ds_mla"
    assert options(launch("0.20.0", gpu="b200", kv="nvfp4"))["--kv-cache-dtype"] == "nvfp4"
    assert options(launch(kv="turboquant_3bit_nc"))["--kv-cache-dtype"] == "turboquant_3bit_nc"
