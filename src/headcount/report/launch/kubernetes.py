"""``kubernetes``: a Deployment, a Service, and a PodDisruptionBudget when replicas are spare.

Kubernetes API reference: apps/v1 Deployment, v1 Service, policy/v1 PodDisruptionBudget; GPUs as the vendors' device
plug-ins name them (``nvidia.com/gpu``, ``amd.com/gpu``).
"""

from __future__ import annotations

from headcount.report.launch.compose import HUB_CACHE, start_seconds
from headcount.report.launch.planned import Planned, dollars_doubled, require_image, require_one_host
from headcount.report.launch.yaml_text import write_yaml

GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
# vLLM's deployment page for Kubernetes gives its ranks as much; it is a limit, not a reservation.
_SHARED_MEMORY = "2Gi"
_PERIOD_SECONDS = 10


def write_kubernetes(made: Planned) -> str:
    """Return the manifests; UsageError when a replica spans nodes, or when no image or GPU resource is known."""
    require_one_host(made, "kubernetes")
    require_image(made, "kubernetes")
    card = made.plan.deployment.accelerator.name
    extra = (
        *made.image_notes(),
        f"nodes must hold {card}: choose them with a nodeSelector where the cluster has others",
        "a secret hf-token with the key token is used where it exists (gated repositories)",
    )
    documents = [_deployment(made), _service(made)]
    if made.plan.spare_replicas:
        documents.append(_disruption_budget(made))
    return "\n".join([*made.header(extra if not made.served.folder else extra[:-1]), write_yaml(documents)])


def _labels(made: Planned) -> dict[str, str]:
    return {"app.kubernetes.io/name": made.slug}


def _deployment(made: Planned) -> dict[str, object]:
    volumes, _ = _volumes(made)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": made.slug, "labels": _labels(made)},
        "spec": {
            "replicas": made.replicas,
            "selector": {"matchLabels": _labels(made)},
            # No GPU is booked for a surge: a rollout takes one replica down before the new one comes up.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": _labels(made)},
                # Service links would set NAME_PORT and the like: a Service called vllm breaks vLLM by VLLM_PORT.
                "spec": {
                    "enableServiceLinks": False,
                    "containers": [_container(made)],
                    "volumes": volumes,
                },
            },
        },
    }


def _container(made: Planned) -> dict[str, object]:
    entry, words = made.container_argv()
    gpus = {GPU_RESOURCES[made.plan.deployment.accelerator.vendor]: made.gpus_per_replica}
    _, mounts = _volumes(made)
    container: dict[str, object] = {"name": "server", "image": made.launch.image}
    if entry:
        container["command"] = dollars_doubled(entry)
    container["args"] = dollars_doubled(words)
    environment: list[dict[str, object]] = [
        {"name": name, "value": value.replace("$", "$$")} for name, value in made.launch.environment
    ]
    if not made.served.folder:
        secret = {"name": "hf-token", "key": "token", "optional": True}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    if environment:
        container["env"] = environment
    container["ports"] = [{"name": "http", "containerPort": made.launch.port}]
    container["resources"] = {"requests": dict(gpus), "limits": dict(gpus)}
    container["volumeMounts"] = mounts
    ready = {"httpGet": {"path": made.launch.health, "port": "http"}, "timeoutSeconds": 5}
    tries = start_seconds(made) // _PERIOD_SECONDS
    container["startupProbe"] = {**ready, "periodSeconds": _PERIOD_SECONDS, "failureThreshold": tries}
    container["readinessProbe"] = {**ready, "periodSeconds": 5, "failureThreshold": 3}
    container["livenessProbe"] = {**ready, "periodSeconds": _PERIOD_SECONDS, "failureThreshold": 6}
    return container


def _volumes(made: Planned) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """``(volumes, mounts)``: the weights, and shared memory where a replica has several ranks."""
    folder = made.served.folder
    if folder:
        volumes: list[dict[str, object]] = [
            {"name": "model", "hostPath": {"path": folder, "type": "Directory"}},
        ]
        mounts: list[dict[str, object]] = [{"name": "model", "mountPath": folder, "readOnly": True}]
    else:
        # Outlives a restart of the container; a PersistentVolumeClaim would outlive the pod.
        volumes = [{"name": "huggingface", "emptyDir": {}}]
        mounts = [{"name": "huggingface", "mountPath": HUB_CACHE}]
    if made.gpus_per_replica > 1:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return volumes, mounts


def _service(made: Planned) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": made.slug, "labels": _labels(made)},
        "spec": {
            "selector": _labels(made),
            "ports": [{"name": "http", "port": made.launch.port, "targetPort": "http"}],
        },
    }


def _disruption_budget(made: Planned) -> dict[str, object]:
    """The plan survives the loss of its spare replicas and of no more."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": made.slug, "labels": _labels(made)},
        "spec": {"maxUnavailable": made.plan.spare_replicas, "selector": {"matchLabels": _labels(made)}},
    }
