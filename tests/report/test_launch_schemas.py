"""The YAML kinds against the schemas that their own projects publish (``data/launch``, each with its source)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launch_plans import planned

from headcount.hardware import accelerator, accelerators
from headcount.planner.plan import Plan
from headcount.report.launch.artefact import write_launch
from headcount.report.launch.ray_serve import ACCELERATOR_TYPES

yaml = pytest.importorskip("yaml")
fastjsonschema = pytest.importorskip("fastjsonschema")
DATA = Path(__file__).parent / "data" / "launch"


@cache
def data(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / name).read_text())
    return found


@cache
def kubernetes_check(kind: str) -> Callable[[Any], Any]:
    schemas = data("kubernetes_1.37.json")
    check: Callable[[Any], Any] = fastjsonschema.compile(
        {**schemas["kinds"][kind], "$defs": schemas["$defs"]}
    )
    return check


@cache
def compose_check() -> Callable[[Any], Any]:
    # Its ``id`` is draft 4's word and its formats are Compose's own.
    schema = {
        name: value
        for name, value in data("compose_spec.json")["schema"].items()
        if name not in ("id", "$schema")
    }
    own = dict.fromkeys(("expose", "ports", "subnet_ip_address"), r".+")
    check: Callable[[Any], Any] = fastjsonschema.compile(
        schema, formats={**own, "duration": r"(\d+(\.\d+)?(us|ms|s|m|h))+"}
    )
    return check


@cache
def ray_check(name: str) -> Callable[[Any], Any]:
    check: Callable[[Any], Any] = fastjsonschema.compile(data("ray_2.60.json")[name])
    return check


CASES: list[dict[str, Any]] = [
    {},
    {"tp": 2, "dp": 2},
    {"gpu": "mi300x", "tp": 2, "pp": 2},
    {"weights": "awq", "kv": "fp8", "arguments": (("no-async-scheduling", ""), ("block-size", "32"))},
    {"context": 200_000, "gpu": "h200"},
    {"arguments": (("speculative-method", "ngram"), ("num-speculative-tokens", "3"))},
]
MODELS = ("llama-3.1-8b", "org/a: b", "no", "1e5", "$x")


@pytest.fixture(params=range(len(CASES)), ids=[str(case) for case in CASES])
def plan(request: pytest.FixtureRequest) -> Plan:
    return planned(**CASES[request.param])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spare", [0, 1])
def test_kubernetes(plan: Plan, model: str, spare: int) -> None:
    """Kubernetes 1.37, strict: an unknown field is an error, as ``kubectl --validate=strict`` has it."""
    documents = list(
        yaml.safe_load_all(write_launch(plan.replace(spare_replicas=spare), "kubernetes", model=model))
    )
    assert [document["kind"] for document in documents] == ["Deployment", "Service", "PodDisruptionBudget"][
        : 2 + spare
    ]
    for document in documents:
        kubernetes_check(document["kind"])(document)
        # RFC 1035 labels: what the API server asks of a Service's name beyond the schema.
        name = document["metadata"]["name"]
        assert len(name) <= 63 and name[0].isalpha() and name[-1].isalnum()
        assert all(ch.isalnum() or ch == "-" for ch in name) and name == name.lower() and name.isascii()


def test_the_kubernetes_schema_is_strict() -> None:
    document = next(yaml.safe_load_all(write_launch(planned(), "kubernetes", model="llama-3.1-8b")))
    document["spec"]["template"]["spec"]["container"] = []
    with pytest.raises(fastjsonschema.JsonSchemaException):
        kubernetes_check("Deployment")(document)


@pytest.mark.parametrize("model", MODELS)
def test_docker_compose(plan: Plan, model: str) -> None:
    document = yaml.safe_load(write_launch(plan, "docker-compose", model=model))
    compose_check()(document)
    (service, *_) = document["services"].values()
    service["replica"] = 2
    with pytest.raises(fastjsonschema.JsonSchemaException):
        compose_check()(document)


@pytest.mark.parametrize("model", MODELS)
def test_ray(plan: Plan, model: str) -> None:
    """The classes' own schemas; they let unknown fields pass, so names are compared as well."""
    schemas = data("ray_2.60.json")
    document = yaml.safe_load(write_launch(plan, "ray", model=model))
    serve = schemas["ServeDeploySchema"]
    ray_check("ServeDeploySchema")(document)
    assert set(document) <= set(serve["properties"])
    (application,) = document["applications"]
    assert set(application) <= set(serve["$defs"]["ServeApplicationSchema"]["properties"])
    (config,) = application["args"]["llm_configs"]
    for name, value in (
        ("LLMConfig", config),
        ("ModelLoadingConfig", config["model_loading_config"]),
        ("PlacementGroupConfig", config["placement_group_config"]),
    ):
        ray_check(name)(value)
        assert set(value) <= set(schemas[name]["properties"])
    assert set(config["deployment_config"]) <= set(schemas["DeploymentConfig fields"])
    # Engine arguments are vLLM's, by the names of its options.
    flags = json.loads((DATA / "vllm_flags.json").read_text())["releases"]["0.33.0"]["flags"]
    assert {"--" + name.replace("_", "-") for name in config["engine_kwargs"]} <= set(flags)


def test_ray_knows_every_type_that_is_written() -> None:
    known = data("ray_2.60.json")["accelerator_types"]
    assert set(ACCELERATOR_TYPES.values()) <= set(known)
    assert set(ACCELERATOR_TYPES) <= {card.name for card in accelerators()}
    for ours, theirs in ACCELERATOR_TYPES.items():
        # H100 for h100-80gb; AMD-Instinct-MI300X-OAM for mi300x.
        assert ours.partition("-")[0].upper() in theirs.upper()
    assert accelerator("rtx-4090").name not in ACCELERATOR_TYPES


@pytest.mark.slow
def test_ray_itself_takes_the_config(plan: Plan) -> None:
    """Ray's real classes (``pip install 'ray[serve]'``)."""
    schema = pytest.importorskip("ray.serve.schema")
    config_module = pytest.importorskip("ray.llm._internal.serve.core.configs.llm_config")
    document = yaml.safe_load(write_launch(plan, "ray", model="llama-3.1-8b"))
    found = schema.ServeDeploySchema.model_validate(document)
    config = config_module.LLMConfig.model_validate(found.applications[0].args["llm_configs"][0])
    assert config.engine_kwargs["tensor_parallel_size"] == plan.layout.tp
    assert config.deployment_config["num_replicas"] == plan.layout.dp
