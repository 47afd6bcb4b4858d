"""Read an artefact again: what it would start, in the plan's words. Whoever plans with that gets the plan it is from.

    line           shlex; replicas and the engine's version are in the header, a command line has no place for them
    docker-compose, kubernetes   YAML; the version is the image's tag (the header's where the tag is none), replicas
                   are services or ``spec.replicas``
    ray            YAML; replicas are in ``deployment_config``, the version in the header

The card, its memory and a calibration are no part of an artefact: the host has them. Weights that the engine does not
make itself are those of the checkpoint; the header's ``weights NAME`` line says in which format.
"""

from __future__ import annotations

import re
import shlex

from headcount.engines.base import Layout, Settings
from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.report.launch.read_flags import Flags, read_flags, read_options, read_variables
from headcount.report.launch.yaml_text import read_yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADER = re.compile(
    r"^# (?P<engine>\S+) (?P<version>\S+), (?P<replicas>\d+) replicas? of (?P<gpus>\d+) GPUs?,", re.M
)
_WEIGHTS = re.compile(r"^# weights (\S+):", re.M)
_LINES = ("vllm", "sglang", "llama-server", "ollama", "tensorrt-llm")
READABLE = (*_LINES, "docker-compose", "kubernetes", "ray")


class ReadBack(Record):
    """What an artefact starts.

    model     "" for Ollama, which is told it later
    version   of the engine; None where neither an image nor a header says it
    layout    of one replica times ``replicas``
    context   tokens of the longest request
    """

    engine: str
    version: str | None
    model: str
    layout: Layout
    context: int
    settings: Settings
    gpus_per_replica: int
    replicas: int


def read_launch(text: str, kind: str) -> ReadBack:
    """Read ``text``, an artefact of ``kind``.

    Raises UnknownNameError for another kind, UsageError or ModelFileError for a text that is no such artefact.
    """
    if kind in _LINES:
        found = _read_line(text)
    elif kind == "docker-compose":
        found = _read_compose(text)
    elif kind == "kubernetes":
        found = _read_kubernetes(text)
    elif kind == "ray":
        found = _read_ray(text)
    else:
        raise UnknownNameError(what="--emit kind", given=kind, allowed=READABLE)
    stored = _WEIGHTS.search(text)
    if stored:
        return found.replace(settings=found.settings.replace(weights=stored.group(1)))
    return found


def _header(text: str) -> tuple[str | None, int, int | None]:
    """``(version, replicas, GPUs of a replica)`` of the comment; (None, 1, None) without one."""
    found = _HEADER.search(text)
    if found is None:
        return None, 1, None
    return found["version"], int(found["replicas"]), int(found["gpus"])


def _made(flags: Flags, *, version: str | None, replicas: int, gpus: int | None) -> ReadBack:
    layout = Layout(tp=flags.tp, pp=flags.pp, dp=replicas)
    if flags.engine in ("llama.cpp", "ollama") and gpus is not None:
        # llama-server deals its layers to every GPU it sees; no flag counts them.
        layout = layout.replace(pp=gpus)
    each = layout.tp * layout.pp
    if gpus is not None and gpus != each:
        raise UsageError(f"a replica is given {gpus} GPUs, and its command line uses {each}")
    return ReadBack(
        engine=flags.engine,
        version=version,
        model=flags.model,
        layout=layout,
        context=flags.context,
        settings=flags.settings,
        gpus_per_replica=each,
        replicas=replicas,
    )


def _read_line(text: str) -> ReadBack:
    # A comment ends at its line; shlex would take an apostrophe in it for a quote.
    command = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    # The shell takes a backslash and the end of its line away; shlex would keep the end of the line.
    words = shlex.split(command.replace("\\\n", " "))
    variables = {}
    while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0], re.S):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    version, replicas, gpus = _header(text)
    flags = read_variables(variables) if words == ["ollama", "serve"] else read_flags(words)
    return _made(flags, version=version, replicas=replicas, gpus=gpus)


def _undoubled(words: list[Any]) -> list[str]:
    return [str(word).replace("$$", "$") for word in words]


def _image_version(image: str) -> str | None:
    """The tag without its ``v``; None for a tag that is no version (``server-cuda-b7000`` is b7000)."""
    tag = image.rpartition(":")[2]
    found = re.search(r"(?:^|-)(?:v(\d[\w.]*)|(b\d+))(?:-|$)", tag)
    return None if found is None else found.group(1) or found.group(2)


def _container_argv(image: str, entry: list[Any], words: list[Any]) -> list[str]:
    argv = [*_undoubled(entry), *_undoubled(words)]
    return argv if entry or "llama.cpp" not in image else ["llama-server", *argv]


def _read_compose(text: str) -> ReadBack:
    services = read_yaml(text)[0].get("services") or {}
    found = []
    for service in services.values():
        flags = read_flags(
            _container_argv(service["image"], service.get("entrypoint", []), service["command"])
        )
        gpus = len(_compose_devices(service))
        found.append(
            _made(
                flags,
                version=_image_version(service["image"]) or _header(text)[0],
                replicas=len(services),
                gpus=gpus,
            )
        )
    if not found or any(each != found[0] for each in found):
        raise UsageError("the services of the Compose file are not replicas of one server")
    taken = [device for service in services.values() for device in _compose_devices(service)]
    if len(set(taken)) != len(taken):
        raise UsageError("two services of the Compose file are given the same GPU")
    return found[0]


def _compose_devices(service: dict[str, Any]) -> list[str]:
    if "deploy" in service:
        reserved = service["deploy"]["resources"]["reservations"]["devices"]
        return [device for request in reserved for device in request["device_ids"]]
    for entry in service.get("environment", []):
        name, _, value = entry.partition("=")
        if name == "HIP_VISIBLE_DEVICES":
            return str(value).split(",")
    return []


def _read_kubernetes(text: str) -> ReadBack:
    deployments = [document for document in read_yaml(text) if document.get("kind") == "Deployment"]
    if len(deployments) != 1:
        raise UsageError(f"the manifests hold {len(deployments)} Deployments, not one")
    spec = deployments[0]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    gpus = sum(int(count) for name, count in limits.items() if name.endswith("/gpu"))
    flags = read_flags(_container_argv(container["image"], container.get("command", []), container["args"]))
    return _made(
        flags,
        version=_image_version(container["image"]) or _header(text)[0],
        replicas=int(spec["replicas"]),
        gpus=gpus,
    )


def _read_ray(text: str) -> ReadBack:
    applications = read_yaml(text)[0]["applications"]
    (config,) = applications[0]["args"]["llm_configs"]
    options: list[tuple[str, str | None]] = [("model", config["model_loading_config"]["model_source"])]
    options += [_ray_option(name, value) for name, value in config["engine_kwargs"].items()]
    version, _, _ = _header(text)
    bundle = config["placement_group_config"]["bundle_per_worker"]
    flags = read_options("vllm", options)
    return _made(
        flags,
        version=version,
        replicas=int(config["deployment_config"]["num_replicas"]),
        gpus=round(bundle["GPU"] * flags.tp * flags.pp),
    )


def _ray_option(name: str, value: object) -> tuple[str, str | None]:
    import json

    flag = name.replace("_", "-")
    if value is True:
        return f"--{flag}", None
    if value is False:
        return f"--no-{flag}", None
    return f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)
