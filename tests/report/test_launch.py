"""What is written is read back, and planned with again: the same conversations on the same GPUs.

The words are checked by readers that are not ours: a real shell, PyYAML, and the expansion rules of Compose and
Kubernetes as their references state them.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
from launch_plans import planned

from headcount.engines import engine
from headcount.errors import HeadcountError, LayoutError, UsageError
from headcount.hardware import accelerator
from headcount.planner.book import Demand, book
from headcount.planner.fit import fit
from headcount.planner.plan import Deployment, Plan
from headcount.report.launch.artefact import write_launch
from headcount.report.launch.read_back import ReadBack, read_launch
from headcount.spec.checkpoint import Checkpoint

yaml = pytest.importorskip("yaml")
VLLM_KINDS = ("vllm", "docker-compose", "kubernetes", "ray")


def planned_again(plan: Plan, read: ReadBack) -> Plan:
    """A plan from nothing but what was read, the model's shape and the card."""
    deployment = Deployment(
        model=plan.deployment.model,
        engine=engine(read.engine, read.version),
        accelerator=plan.deployment.accelerator,
        settings=read.settings,
        tp=read.layout.tp,
        pp=read.layout.pp,
        dp=read.layout.dp,
    )
    return fit(deployment, gpus=None, context=read.context, allow_long=True)


def assert_same_plan(plan: Plan, kind: str, model: str) -> ReadBack:
    text = write_launch(plan, kind, model=model)
    read = read_launch(text, kind)
    again = planned_again(plan, read)
    assert (read.engine, read.version) == (plan.deployment.engine.name, plan.deployment.engine.version)
    assert (read.context, read.layout) == (plan.context, plan.layout)
    assert (read.replicas, read.gpus_per_replica) == (plan.layout.dp, plan.layout.tp * plan.layout.pp)
    assert again.layout.gpus == plan.layout.gpus
    assert (again.conversations, again.low) == (plan.conversations, plan.low)
    # A line that caps the requests at the plan's number cannot reach the upper end of its interval.
    assert again.high == (plan.high if read.engine == "vllm" else plan.conversations)
    assert again.replica.budget.weights == plan.replica.budget.weights
    return read


GRID: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b", {}),
    ("llama-3.1-8b", {"utilization": 0.8}),
    ("llama-3.1-8b", {"reserve": 0.1, "kv": "fp8"}),
    ("llama-3.1-8b", {"utilization": 0.8765, "kv": "fp8_e5m2", "dp": 3}),
    ("llama-3.1-8b", {"kv": "int8_per_token_head", "tp": 2, "dp": 2}),
    ("llama-3.1-8b", {"kv": "bf16", "pp": 2}),
    ("llama-3.1-8b", {"weights": "fp16", "gpu": "a100-80gb"}),
    ("llama-3.1-8b", {"weights": "fp8"}),
    ("llama-3.1-8b", {"weights": "fp8_block", "tp": 2}),
    ("llama-3.1-8b", {"weights": "mxfp4", "gpu": "b200"}),
    ("llama-3.1-8b", {"weights": "awq", "gpu": "l40s"}),
    (
        "llama-3.1-8b",
        {"weights": "gptq", "gpu": "rtx-4090", "max_num_seqs": 64, "max_num_batched_tokens": 1024},
    ),
    ("llama-3.1-8b", {"weights": "nf4", "version": "0.19.1", "gpu": "a100-40gb"}),
    ("llama-3.1-8b", {"weights": "fp8", "version": "0.11.2", "kv": "fp8"}),
    ("llama-3.1-8b", {"max_num_seqs": 8}),
    ("llama-3.1-8b", {"arguments": (("enforce-eager", ""), ("block-size", "32"))}),
    ("llama-3.1-8b", {"arguments": (("no-async-scheduling", "true"), ("enable_prefix_caching", "false"))}),
    ("llama-3.1-8b", {"context": 200_000}),
    ("llama-3.1-8b", {"context": 3, "max_num_seqs": 512}),
    ("llama-3.1-70b", {"tp": 4, "pp": 2, "gpu": "a100-80gb", "version": "0.29.0"}),
    ("mixtral-8x7b", {"tp": 2, "gpu": "h200"}),
    ("gemma-3-27b", {"context": 32768, "tp": 2}),
    ("gpt-oss-20b", {"context": 32768, "gpu": "mi300x"}),
    ("deepseek-v3", {"tp": 8, "gpu": "h200", "context": 16384}),
    ("qwen3-next-80b-a3b", {"tp": 4, "context": 65536}),
]


@pytest.mark.parametrize("kind", VLLM_KINDS)
@pytest.mark.parametrize(("model", "asked"), GRID, ids=[f"{n} {c}" for n, c in GRID])
def test_a_vllm_plan_comes_back(kind: str, model: str, asked: dict[str, Any]) -> None:
    assert_same_plan(planned(model, **asked), kind, model)


SGLANG: list[dict[str, Any]] = [
    {},
    {"tp": 2, "kv": "fp8", "dp": 2},
    {"utilization": 0.8, "weights": "fp8"},
    {"max_num_batched_tokens": 4096, "max_num_seqs": 16},
    {"weights": "awq", "gpu": "l40s"},
]


@pytest.mark.parametrize("kind", ["sglang", "docker-compose", "kubernetes"])
@pytest.mark.parametrize("asked", SGLANG, ids=[str(case) for case in SGLANG])
def test_an_sglang_plan_comes_back(kind: str, asked: dict[str, Any]) -> None:
    assert_same_plan(planned(name="sglang", **asked), kind, "llama-3.1-8b")


LLAMA: list[dict[str, Any]] = [
    {"gpu": "rtx-4090", "weights": "q4_k_m"},
    {"gpu": "l40s", "kv": "q8_0", "dp": 2},
    {"gpu": "l40s", "pp": 2, "max_num_seqs": 4},
    {"gpu": "h100-80gb", "arguments": (("kv-unified", ""), ("batch-size", "1024"), ("cache-type-v", "q8_0"))},
]


@pytest.mark.parametrize("kind", ["llama-server", "docker-compose", "kubernetes"])
@pytest.mark.parametrize("asked", LLAMA, ids=[str(case) for case in LLAMA])
def test_a_llama_server_plan_comes_back(kind: str, asked: dict[str, Any]) -> None:
    plan = planned(name="llama.cpp", **asked)
    read = assert_same_plan(plan, kind, "llama-3.1-8b")
    mix = asked.get("weights", "bf16").upper()
    folder = "" if kind == "llama-server" else "/models/"
    assert read.model == f"{folder}Llama-3.1-8B-{mix}.gguf"


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("ollama", {"gpu": "rtx-4090", "weights": "q4_k_m"}),
    ("ollama", {"gpu": "l40s", "kv": "q8_0", "dp": 2, "version": "0.32.15"}),
    ("ollama", {"gpu": "l40s", "pp": 2, "max_num_seqs": 4, "arguments": (("gpu-overhead", "2GiB"),)}),
    ("ollama", {"gpu": "l40s", "arguments": (("flash-attention", "false"),)}),
    ("tensorrt-llm", {}),
    ("tensorrt-llm", {"kv": "fp8", "tp": 2, "dp": 2, "utilization": 0.8}),
    ("tensorrt-llm", {"arguments": (("tokens-per-block", "64"), ("max-tokens", "100000"))}),
    ("tensorrt-llm", {"weights": "fp8", "max_num_seqs": 16, "max_num_batched_tokens": 4096}),
]


@pytest.mark.parametrize(("name", "asked"), OTHERS, ids=[f"{n} {c}" for n, c in OTHERS])
def test_an_ollama_and_a_tensorrt_llm_plan_come_back(name: str, asked: dict[str, Any]) -> None:
    assert_same_plan(planned(name=name, **asked), name, "llama-3.1-8b")
    if name == "tensorrt-llm":
        assert_same_plan(planned(name=name, **asked), "kubernetes", "llama-3.1-8b")


def test_windows_and_attention_groups_of_tensorrt_llm_come_back() -> None:
    windows = planned("gpt-oss-20b", name="tensorrt-llm", arguments=(("max-attention-window", "model"),))
    assert_same_plan(windows, "tensorrt-llm", "gpt-oss-20b")
    groups = planned(
        "deepseek-v3", name="tensorrt-llm", tp=8, gpu="h200", arguments=(("enable-attention-dp", "true"),)
    )
    again = planned_again(
        groups, read_launch(write_launch(groups, "tensorrt-llm", model="x/y"), "tensorrt-llm")
    )
    # The batch is one rank's: it is rounded up to whole requests of every rank.
    assert groups.conversations == again.conversations


def test_a_shell_takes_the_lines_of_every_engine() -> None:
    """What ``bash`` hands to the program is what was planned, variables included."""
    ollama = write_launch(
        planned(name="ollama", gpu="rtx-4090", weights="q4_k_m"), "ollama", model="llama-3.1-8b"
    )
    script = f'ollama() {{ echo "$OLLAMA_CONTEXT_LENGTH $OLLAMA_FLASH_ATTENTION $*"; }}\n{ollama}'
    assert bash(script) == "4096 1 serve\n"
    made = write_launch(planned(name="tensorrt-llm", kv="fp8"), "tensorrt-llm", model="my model")
    script = "\n".join(line for line in made.splitlines() if not line.startswith("#")).replace(
        "sh -c", "echo", 1
    )
    assert bash(script).startswith("printf %s '{")


def bash(script: str) -> str:
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stderr == ""
    return done.stdout


def comments(text: str) -> list[str]:
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith("#")]


def test_a_gguf_that_is_yet_to_be_made_says_how() -> None:
    plan = planned(name="llama.cpp", gpu="rtx-4090", weights="q4_k_m")
    text = write_launch(plan, "llama-server", model="llama-3.1-8b")
    steps = [line.strip() for line in comments(text)]
    # llama.cpp's README of tools/quantize: convert to 16 bits, then llama-quantize IN OUT TYPE.
    assert "hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B" in steps
    assert (
        "python3 convert_hf_to_gguf.py Llama-3.1-8B --outtype bf16 --outfile Llama-3.1-8B-BF16.gguf" in steps
    )
    assert "llama-quantize Llama-3.1-8B-BF16.gguf Llama-3.1-8B-Q4_K_M.gguf Q4_K_M" in steps
    command = text[text.index("\nllama-server") :]
    assert "-m Llama-3.1-8B-Q4_K_M.gguf" in command
    assert "-hf" not in command
    plain = write_launch(planned(name="llama.cpp", gpu="rtx-4090"), "llama-server", model="llama-3.1-8b")
    assert "llama-quantize" not in plain
    assert "-m Llama-3.1-8B-BF16.gguf" in plain


def test_a_gguf_file_is_named_and_mounted(tmp_path: Any) -> None:
    file = tmp_path / "a b.gguf"
    file.write_bytes(b"")
    plan = planned(name="llama.cpp", gpu="rtx-4090")
    stored = Checkpoint(path=str(file), file_format="gguf", tensors=(), metadata={}, files=(str(file),))
    model = plan.deployment.model.replace(checkpoint=stored)
    plan = plan.replace(deployment=plan.deployment.replace(model=model))
    text = write_launch(plan, "llama-server", model=str(file))
    assert read_launch(text, "llama-server").model == str(file)
    assert "convert_hf_to_gguf" not in text
    service = yaml.safe_load(write_launch(plan, "docker-compose", model=str(tmp_path)))["services"]["a-b"]
    assert service["volumes"][0]["source"] == str(tmp_path)
    assert service["command"][:2] == ["-m", str(file)]
    again = plan.deployment.settings.replace(weights="q4_0")
    other = plan.replace(deployment=plan.deployment.replace(settings=again))
    assert "llama-quantize" in write_launch(other, "llama-server", model=str(file))


def test_images_are_pinned_where_a_tag_exists() -> None:
    def image(version: str | None, gpu: str = "rtx-4090") -> tuple[str, str]:
        plan = planned(name="llama.cpp", gpu=gpu, version=version)
        text = write_launch(plan, "docker-compose", model="llama-3.1-8b")
        return yaml.safe_load(text)["services"]["llama-3-1-8b-bf16"]["image"], text

    # Tags as ggml-org publishes them: server-cuda-b5517, server-rocm-b9917.
    assert image("b7000")[0] == "ghcr.io/ggml-org/llama.cpp:server-cuda-b7000"
    assert "made once a day" in image("b7000")[1]
    assert image("b9917", "mi300x")[0] == "ghcr.io/ggml-org/llama.cpp:server-rocm-b9917"
    name, text = image(None)
    assert name == "ghcr.io/ggml-org/llama.cpp:server-cuda"
    assert "the image is not pinned" in text
    assert "not pinned" not in write_launch(planned(), "docker-compose", model="llama-3.1-8b")


def test_what_joins_nodes_is_the_engines_own() -> None:
    wide = {"tp": 8, "pp": 2, "gpu": "h200", "context": 4096}
    text = write_launch(planned("llama-3.1-405b", name="sglang", **wide), "sglang", model="llama-3.1-405b")
    assert "--nnodes 2" in text
    assert "Ray" not in text
    text = write_launch(planned("llama-3.1-405b", name="tensorrt-llm", **wide), "tensorrt-llm", model="a/b")
    assert "trtllm-llmapi-launch" in text
    # vLLM 0.33 refuses a world larger than the node unless Ray is asked for (config/parallel.py).
    text = write_launch(planned("llama-3.1-405b", **wide), "vllm", model="llama-3.1-405b")
    assert "--distributed-executor-backend ray" in text
    assert "executor" not in write_launch(planned(), "vllm", model="a/b")
    split = planned("llama-3.1-405b", name="llama.cpp", pp=16, gpu="h100-80gb")
    for kind in ("llama-server", "docker-compose", "kubernetes"):
        with pytest.raises(UsageError, match="llama-server runs on one host: a replica of 16 GPUs"):
            write_launch(split, kind, model="llama-3.1-405b")


def test_ollama_is_given_its_model_afterwards() -> None:
    plan = planned(name="ollama", gpu="rtx-4090", weights="q4_k_m", max_num_batched_tokens=1024)
    text = write_launch(plan, "ollama", model="llama-3.1-8b")
    assert any("ollama create" in line for line in comments(text))
    assert any("ollama pull" in line for line in comments(text))
    assert any("PARAMETER num_batch 1024" in line for line in comments(text))
    with pytest.raises(UsageError, match="--emit ollama prints"):
        write_launch(plan, "docker-compose", model="llama-3.1-8b")


def test_a_booking_with_a_spare_replica_comes_back() -> None:
    deployment = planned().deployment.replace(tp=None, pp=None, dp=None)
    plan = book(deployment, Demand(users=100, context=8192, spare=1))
    assert plan.layout.dp > 1
    for kind in VLLM_KINDS:
        assert_same_plan(plan, kind, "llama-3.1-8b")
    budget = [
        document
        for document in yaml.safe_load_all(write_launch(plan, "kubernetes", model="llama-3.1-8b"))
        if document["kind"] == "PodDisruptionBudget"
    ]
    assert [document["spec"]["maxUnavailable"] for document in budget] == [1]


NAMES = [
    "my model",
    "it's",
    'say "hi"',
    "a$b",
    "$(HOME)",
    "${HOME:-x}",
    "$$",
    "a: b",
    "no",
    "Null",
    "1e5",
    "0x1F",
    "12:30:00",
    "2024-01-01",
    "1_000",
    ".inf",
    "a #b",
    "#hash",
    "*star",
    "&amp",
    "!bang!",
    "%d%s",
    "{a}",
    "[b]",
    "`id`",
    "a;b|c&d>e",
    "back\\slash\\n",
    "tail\\",
    "? mark",
    "ünïcode/モデル",
    "@at",
    "org/name-with.dots_and-dashes",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_awkward_name_arrives_as_it_is(name: str) -> None:
    plan = planned(dp=2)
    for kind in VLLM_KINDS:
        assert read_launch(write_launch(plan, kind, model=name), kind).model == name
    assert shell_words(write_launch(plan, "vllm", model=name))[:2] == ["serve", name]
    services = yaml.safe_load(write_launch(plan, "docker-compose", model=name))["services"]
    for service in services.values():
        assert [expanded(word, "{") for word in service["command"]][1] == name
    deployment = next(yaml.safe_load_all(write_launch(plan, "kubernetes", model=name)))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert [expanded(word, "(") for word in container["args"]][1] == name


@pytest.mark.parametrize("name", NAMES)
def test_an_awkward_name_arrives_at_the_other_servers(name: str) -> None:
    plan = planned(name="llama.cpp", gpu="rtx-4090", weights="q4_k_m")
    for kind in ("llama-server", "docker-compose", "kubernetes"):
        loaded = read_launch(write_launch(plan, kind, model=name), kind).model
        assert loaded.rpartition("/")[2] == f"{name.rpartition('/')[2]}-Q4_K_M.gguf"
    # A file of options is written by the shell that starts the server: the name is quoted twice.
    plan = planned(name="tensorrt-llm", kv="fp8")
    for kind in ("tensorrt-llm", "docker-compose", "kubernetes"):
        assert read_launch(write_launch(plan, kind, model=name), kind).model == name


def shell_words(text: str) -> list[str]:
    """The arguments that a real shell hands to ``vllm``."""
    script = f"vllm() {{ printf '%s\\0' \"$@\"; }}\n{text}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert done.stderr == ""
    return done.stdout.split("\0")[:-1]


def expanded(word: str, bracket: str) -> str:
    """What the runtime makes of ``word`` when no variable is set.

    Compose specification, "Interpolation": ``$$`` is a dollar sign, ``$NAME`` and ``${NAME}`` are variables.
    Kubernetes API, Container.args: ``$$`` is a dollar sign, ``$(NAME)`` a variable, kept as it is when unknown.
    """
    kinds = {"{": r"\$\$|\$\{[^}]*\}|\$[A-Za-z_]\w*", "(": r"\$\$"}
    return re.sub(kinds[bracket], lambda found: "$" if found[0] == "$$" else "", word)


@pytest.mark.parametrize(
    "name", ["a\nb", "a\r\nb", "a\u2028b", "a\x85b", "a\x1bb", "a\0b", "- x", "-x", "--trust", "   "]
)
def test_a_name_that_nothing_can_carry_is_refused(name: str) -> None:
    plan = planned()
    for kind in VLLM_KINDS:
        with pytest.raises(HeadcountError) as caught:
            write_launch(plan, kind, model=name)
        assert str(caught.value).isprintable()


# Implicit types of plain text: YAML 1.1 (bool, int, float, merge, null, timestamp types at yaml.org/type) and the core
# schema of YAML 1.2.2, chapter 10.3.
IMPLICIT = re.compile(
    r"(y|yes|n|no|true|false|on|off|null|~|<<|=)|[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-f_]+|[0-9][0-9_]*(:[0-5]?[0-9])*)"
    r"|[-+]?([0-9][0-9_]*)?\.?[0-9_]*(e[-+]?[0-9]+)?|[-+]?(\.inf)|\.nan|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*",
    re.IGNORECASE,
)


@pytest.mark.parametrize("kind", ["docker-compose", "kubernetes", "ray"])
def test_no_text_could_be_another_type(kind: str) -> None:
    """Every string that stands without quotes is a string in both versions of YAML."""
    for name in NAMES:
        text = write_launch(planned(arguments=(("block-size", "32"),)), kind, model=name)
        plain = [
            event.value
            for event in yaml.parse(text)
            if isinstance(event, yaml.ScalarEvent) and event.style is None
        ]
        texts = [word for word in plain if isinstance(yaml.safe_load(word), str)]
        assert texts
        assert not [word for word in texts if IMPLICIT.fullmatch(word)]


def test_the_line_is_broken_before_each_option() -> None:
    text = write_launch(planned(dp=2), "vllm", model="llama-3.1-8b")
    lines = text.splitlines()
    assert lines[0].startswith("# headcount ")
    assert lines[2] == "# start it 2 times, each with its own CUDA_VISIBLE_DEVICES and --port"
    assert lines[3] == "vllm serve meta-llama/Llama-3.1-8B \\"
    assert all(line.startswith("  --") for line in lines[4:])
    assert all(line.endswith(" \\") for line in lines[4:-1])
    assert "--max-model-len 4096" in text
    assert shell_words(text)[2:4] == ["--tensor-parallel-size", "1"]


def test_replicas_of_a_compose_file_do_not_meet() -> None:
    services = yaml.safe_load(write_launch(planned(tp=2, dp=4), "docker-compose", model="llama-3.1-8b"))[
        "services"
    ]
    ports = [port for service in services.values() for port in service["ports"]]
    assert ports == [f"{8000 + i}:8000" for i in range(4)]
    devices = [
        device
        for service in services.values()
        for request in service["deploy"]["resources"]["reservations"]["devices"]
        for device in request["device_ids"]
    ]
    assert devices == [str(i) for i in range(8)]


def test_amd_cards_have_their_own_resource_image_and_variable() -> None:
    plan = planned(gpu="mi300x", tp=2)
    deployment = next(yaml.safe_load_all(write_launch(plan, "kubernetes", model="llama-3.1-8b")))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": 2}
    assert container["image"] == "vllm/vllm-openai-rocm:v0.33.0"
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    service = yaml.safe_load(write_launch(plan, "docker-compose", model="llama-3.1-8b"))["services"][
        "llama-3-1-8b"
    ]
    assert "HIP_VISIBLE_DEVICES=0,1" in service["environment"]
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]


def test_a_first_start_has_time_to_load() -> None:
    """Ten minutes and the weights at 100 MB/s: 405.9e9 parameters at two bytes take 8,117 s, and ranks hold copies."""
    plan = planned("llama-3.1-405b", tp=8, pp=2, gpu="h200")
    plan = plan.replace(deployment=plan.deployment.replace(gpus_per_node=16))
    deployment = next(yaml.safe_load_all(write_launch(plan, "kubernetes", model="llama-3.1-405b")))
    probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert 8717 <= probe["failureThreshold"] * probe["periodSeconds"] <= 9100


def test_what_one_host_cannot_hold_is_refused_by_kind() -> None:
    wide = planned("llama-3.1-405b", tp=8, pp=2)
    for kind in ("docker-compose", "kubernetes"):
        with pytest.raises(UsageError, match="16 GPUs of nodes of 8"):
            write_launch(wide, kind, model="llama-3.1-405b")
    assert "strategy: PACK" in write_launch(wide, "ray", model="llama-3.1-405b")
    assert "one replica spans 2 nodes" in write_launch(wide, "vllm", model="llama-3.1-405b")
    with pytest.raises(UsageError, match="2 nodes of 8 GPUs"):
        write_launch(planned(dp=9), "docker-compose", model="llama-3.1-8b")


def test_other_cards_get_no_container() -> None:
    plan = planned(gpu="h100-80gb")
    other = plan.replace(deployment=plan.deployment.replace(accelerator=accelerator("m2-ultra-64gb")))
    with pytest.raises(UsageError, match="not apple ones"):
        write_launch(other, "kubernetes", model="llama-3.1-8b")


def test_a_plan_that_holds_nothing_is_not_launched() -> None:
    plan = planned("llama-3.1-70b", gpu="rtx-4090")
    assert not plan.conversations
    with pytest.raises(LayoutError, match="nothing fits"):
        write_launch(plan, "vllm", model="llama-3.1-70b")


def test_a_catalogue_name_becomes_a_repository() -> None:
    def loaded(model: str) -> str:
        return read_launch(write_launch(planned(), "vllm", model=model), "vllm").model

    assert loaded("llama-3.1-8b") == "meta-llama/Llama-3.1-8B"
    assert loaded("llama-3.1-8b-instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert loaded("meta-llama/llama-3.1-8b-instruct") == "meta-llama/Llama-3.1-8B-Instruct"
    assert loaded("someone/else") == "someone/else"
    # Meta's own repository of that name holds no config (meta-llama/llama issues 394, 448).
    assert loaded("llama-2-7b") == loaded("meta-llama/Llama-2-7b") == "meta-llama/Llama-2-7b-hf"


def test_lines_are_those_of_the_release() -> None:
    """``vllm serve`` came with 0.5.2 (vllm/scripts.py), ``llama-server`` with pull request 7809, its streams with 14363."""
    assert write_launch(planned(version="0.5.2"), "vllm", model="a/b")
    with pytest.raises(UsageError, match=r"vLLM 0\.5\.1 has no command vllm serve"):
        write_launch(planned(version="0.5.1"), "vllm", model="a/b")
    line = write_launch(planned(name="llama.cpp", version="b5000"), "llama-server", model="a/b")
    assert "--kv-unified" not in line
    with pytest.raises(UsageError, match="which call the program llama-server"):
        write_launch(planned(name="llama.cpp", version="b2000"), "llama-server", model="a/b")
    kept = write_launch(planned(name="sglang", kv="fp8_e5m2", gpu="b200"), "sglang", model="a/b")
    assert "--kv-cache-dtype fp8_e5m2" in kept
    own = write_launch(planned("internlm2-7b"), "vllm", model="internlm2-7b")
    assert "then add --trust-remote-code" in own


def test_a_directory_is_named_whole_and_mounted(tmp_path: Any) -> None:
    folder = tmp_path / "my $model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    for text in (str(folder), str(folder / "config.json"), str(folder / "model.safetensors")):
        read = read_launch(write_launch(planned(), "kubernetes", model=text), "kubernetes")
        assert read.model == str(folder)
    deployment = next(yaml.safe_load_all(write_launch(planned(), "kubernetes", model=str(folder))))
    volume = deployment["spec"]["template"]["spec"]["volumes"][0]
    assert volume == {"name": "model", "hostPath": {"path": str(folder), "type": "Directory"}}
    service = yaml.safe_load(write_launch(planned(), "docker-compose", model=str(folder)))["services"][
        "my-model"
    ]
    assert expanded(service["volumes"][0]["source"], "{") == str(folder)
    assert "HF_TOKEN" not in service.get("environment", [])


def test_nothing_to_load_is_refused(tmp_path: Any) -> None:
    lone = tmp_path / "shape.json"
    lone.write_text("{}")
    with pytest.raises(UsageError, match="holds no weights"):
        write_launch(planned(), "vllm", model=str(lone))
    with pytest.raises(UsageError, match="inline model"):
        write_launch(planned(), "vllm", model="layers=32,hidden=4096,heads=32")


def test_a_file_that_is_no_such_artefact_is_refused() -> None:
    good = write_launch(planned(dp=2), "docker-compose", model="llama-3.1-8b")
    with pytest.raises(UsageError, match="same GPU"):
        read_launch(
            good.replace('- "1"\n            capabilities', '- "0"\n            capabilities'),
            "docker-compose",
        )
    with pytest.raises(UsageError, match="not replicas of one server"):
        read_launch(good.replace('"4096"', '"8192"', 1), "docker-compose")
    with pytest.raises(UsageError, match="starts no server"):
        read_launch("ls -l\n", "vllm")
    with pytest.raises(UsageError, match="names no context"):
        read_launch("vllm serve a/b\n", "vllm")
    with pytest.raises(HeadcountError, match="kind"):
        read_launch(good, "helm")
