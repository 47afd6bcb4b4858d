"""``docker-compose``: one service per replica, each with GPUs of its own, on one host.

``deploy.replicas`` is not used: every copy would be given the same devices. Compose specification, ``deploy.md``
(device reservations) and ``05-services.md``.
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.report.launch.planned import (
    DEVICES,
    Planned,
    dollars_doubled,
    require_image,
    require_one_host,
)
from headcount.report.launch.yaml_text import write_yaml
from headcount.units import MB, ceil_div

HUB_CACHE = "/root/.cache/huggingface"
_CACHE_VOLUME = "huggingface"


def write_compose(made: Planned) -> str:
    """Return the Compose file.

    Raises UsageError when the plan takes more than one host, or when no image or device rule is known.
    """
    require_one_host(made, "docker-compose")
    require_image(made, "docker-compose")
    if made.plan.nodes > 1:
        raise UsageError(
            f"--emit docker-compose is for one host, and the plan takes {made.plan.nodes} nodes of "
            f"{made.plan.deployment.gpus_per_node} GPUs (--gpus-per-node); --emit kubernetes spreads the replicas"
        )
    services = {
        made.slug if made.replicas == 1 else f"{made.slug}-{index}": _service(made, index)
        for index in range(made.replicas)
    }
    document: dict[str, object] = {"services": services}
    if not made.served.folder:
        document["volumes"] = {_CACHE_VOLUME: {}}
    last = made.launch.port + made.replicas - 1
    ports = f"port {last}" if made.replicas == 1 else f"ports {made.launch.port} to {last}, one each"
    return "\n".join([*made.header((f"listens on {ports}", *made.image_notes())), write_yaml([document])])


def _service(made: Planned, index: int) -> dict[str, object]:
    entry, words = made.container_argv()
    first = index * made.gpus_per_replica
    devices = [str(number) for number in range(first, first + made.gpus_per_replica)]
    service: dict[str, object] = {"image": made.launch.image}
    if entry:
        service["entrypoint"] = dollars_doubled(entry)
    service["command"] = dollars_doubled(words)
    environment = [f"{name}={value}" for name, value in made.launch.environment]
    if made.plan.deployment.accelerator.vendor == "amd":
        environment.append(f"{DEVICES['amd']}={','.join(devices)}")
    if made.served.folder:
        folder = made.served.folder.replace("$", "$$")
        mount: object = {"type": "bind", "source": folder, "target": folder, "read_only": True}
    else:
        # Without a value: passed on from the host when it is set there.
        environment.append("HF_TOKEN")
        mount = {"type": "volume", "source": _CACHE_VOLUME, "target": HUB_CACHE}
    if environment:
        service["environment"] = dollars_doubled(tuple(environment))
    service["volumes"] = [mount]
    service["ports"] = [f"{made.launch.port + index}:{made.launch.port}"]
    # Ranks of one replica share memory; Docker's default of 64 MB is too little for them.
    if made.gpus_per_replica > 1:
        service["ipc"] = "host"
    service.update(_devices(made, devices))
    service["healthcheck"] = _health(made)
    service["restart"] = "unless-stopped"
    return service


def _devices(made: Planned, devices: list[str]) -> dict[str, object]:
    if made.plan.deployment.accelerator.vendor == "amd":
        return {
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": ["video"],
            "security_opt": ["seccomp=unconfined"],
        }
    reserved = [{"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}]
    return {"deploy": {"resources": {"reservations": {"devices": reserved}}}}


def _health(made: Planned) -> dict[str, object]:
    address = f"http://localhost:{made.launch.port}{made.launch.health}"
    if made.launch.argv[0] == "llama-server":
        test = ["CMD", "curl", "-f", address]
    else:
        test = ["CMD", "python3", "-c", f"import urllib.request as r; r.urlopen('{address}', timeout=5)"]
    return {
        "test": test,
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": f"{start_seconds(made)}s",
    }


def start_seconds(made: Planned) -> int:
    """Seconds a first start may take: ``600 + weight bytes of a replica / 100 MB/s``, up to whole minutes.

    Downloading and reading the weights at 100 MB/s, a slow link, and ten minutes for graphs and compilation: a
    generous allowance, not a prediction. Too short a one kills a server that is still loading.
    """
    weights = made.plan.replica.budget.weights * made.gpus_per_replica
    loading = ceil_div(weights, 100 * MB)
    return ceil_div(600 + loading, 60) * 60
