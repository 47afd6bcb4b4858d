"""``ray``: a Ray Serve config file (``serve deploy FILE``) with one LLMConfig; vLLM is the engine.

Field names as in the released package ray 2.60.0: ``serve/schema.py`` (ServeDeploySchema, ServeApplicationSchema),
``llm/_internal/serve/core/configs/llm_config.py`` (LLMConfig), ``util/accelerators/accelerators.py`` (types).
"""

from __future__ import annotations

from headcount.report.launch.planned import Planned
from headcount.report.launch.read_flags import options_of
from headcount.report.launch.yaml_text import write_yaml

RAY_VERSION = "2.60.0"
# What ``ray[llm]`` of that version requires, exactly.
_VLLM_OF_RAY = "0.29.0"
# Our cards, by the type that Ray labels a node with.
ACCELERATOR_TYPES = {
    "a100-80gb": "A100",
    "a100-40gb": "A100",
    "a100-pcie-80gb": "A100",
    "a100-pcie-40gb": "A100",
    "h100-80gb": "H100",
    "h100-pcie": "H100",
    "h100-nvl": "H100",
    "h20": "H20",
    "h200": "H200",
    "h200-nvl": "H200",
    "b200": "B200",
    "gb200": "GB200",
    "b300": "B300",
    "gb300": "GB300",
    "l40s": "L40S",
    "l4": "L4",
    "a10g": "A10G",
    "t4": "T4",
    "v100-32gb": "V100",
    "v100-16gb": "V100",
    "mi300x": "AMD-Instinct-MI300X-OAM",
    "mi325x": "AMD-Instinct-MI325X-OAM",
    "mi350x": "AMD-Instinct-MI350X-OAM",
    "mi355x": "AMD-Instinct-MI355X-OAM",
    "mi210": "AMD-Instinct-MI210",
}
# argv: vllm serve MODEL, then options.
_HEAD = 3


def write_ray(made: Planned) -> str:
    """Return the config file."""
    deployment = made.plan.deployment
    kind = ACCELERATOR_TYPES.get(deployment.accelerator.name)
    notes = [f"Ray {RAY_VERSION}: serve deploy FILE"]
    if deployment.engine.version != _VLLM_OF_RAY:
        notes.append(
            f"ray[llm] {RAY_VERSION} installs vLLM {_VLLM_OF_RAY}: plan with --engine-version {_VLLM_OF_RAY}, or "
            f"install {deployment.engine.version} on the nodes"
        )
    if kind is None:
        notes.append(
            f"Ray has no type for {deployment.accelerator.name}: nodes of other GPUs must be kept out"
        )
    elif kind == "A100":
        notes.append(
            f"Ray's type A100 does not tell memory apart: every A100 node must hold {deployment.accelerator.name}"
        )
    if made.served.folder:
        notes.append(f"every node must hold {made.served.folder}")
    config: dict[str, object] = {
        "model_loading_config": {"model_id": made.slug, "model_source": made.served.name},
    }
    if kind is not None:
        config["accelerator_type"] = kind
    config["engine_kwargs"] = dict(
        _engine_argument(*option) for option in options_of(made.launch.argv[_HEAD:])
    )
    config["deployment_config"] = {"num_replicas": made.replicas}
    # Tensor-parallel ranks stay on one node; a replica that fits a node is kept there whole.
    packed = "STRICT_PACK" if made.gpus_per_replica <= deployment.gpus_per_node else "PACK"
    config["placement_group_config"] = {"bundle_per_worker": {"GPU": 1, "CPU": 1}, "strategy": packed}
    if made.launch.environment:
        config["runtime_env"] = {"env_vars": dict(made.launch.environment)}
    application = {
        "name": made.slug,
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    return "\n".join([*made.header(tuple(notes)), write_yaml([{"applications": [application]}])])


def _engine_argument(flag: str, text: str | None) -> tuple[str, object]:
    """``--block-size 32`` -> ``("block_size", 32)``; ``--no-async-scheduling`` -> ``("async_scheduling", False)``."""
    name = flag.lstrip("-").replace("-", "_")
    if text is None:
        return (name.removeprefix("no_"), False) if name.startswith("no_") else (name, True)
    return name, _typed(text)


def _typed(text: str) -> object:
    """A flag's text as the value that Ray passes on: numbers as numbers, JSON as an object."""
    import json

    if text.startswith("{"):
        return json.loads(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
