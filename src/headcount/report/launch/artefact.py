"""``write_launch``: one plan and one kind -> the text of the artefact."""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UnknownNameError, UsageError
from headcount.report.launch.planned import planned
from headcount.report.launch.served_model import served_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.engines.base import Engine
    from headcount.planner.plan import Plan
    from headcount.report.launch.planned import Planned

# Kind -> (module, function, engine that it is for; "" for every server).
_WRITERS = {
    "vllm": ("line", "write_line", "vllm"),
    "sglang": ("line", "write_line", "sglang"),
    "llama-server": ("line", "write_line", "llama.cpp"),
    "ollama": ("line", "write_line", "ollama"),
    "tensorrt-llm": ("line", "write_line", "tensorrt-llm"),
    "docker-compose": ("compose", "write_compose", ""),
    "kubernetes": ("kubernetes", "write_kubernetes", ""),
    "ray": ("ray_serve", "write_ray", "vllm"),
}
KINDS = tuple(_WRITERS)
_CONTAINERS = ("docker-compose", "kubernetes")


def check_kind(kind: str, engine: Engine) -> None:
    """Raise UnknownNameError for another kind; UsageError when ``engine`` is no server or ``kind`` is another's."""
    from headcount.engines.base import Engine as Contract

    if kind not in _WRITERS:
        raise UnknownNameError(what="--emit kind", given=kind, allowed=KINDS)
    if type(engine).launch is Contract.launch:
        raise UsageError(f"--emit {kind}: the {engine.name} engine is no server, there is nothing to launch")
    wanted = _WRITERS[kind][2]
    if wanted and engine.name != wanted:
        raise UsageError(f"--emit {kind} is for --engine {wanted}; this plan is for {engine.name}")
    if engine.name == "ollama" and not wanted:
        raise UsageError(
            f"--emit {kind}: an Ollama server is told its model by the first request, not by how it is started; "
            "--emit ollama prints its variables"
        )


def write_launch(plan: Plan, kind: str, *, model: str) -> str:
    """Return ``plan`` as an artefact of ``kind``; ``model`` is MODEL as it was typed.

    Raises UnknownNameError for another kind, LayoutError when the plan holds nothing, UsageError for an engine that is
    no server or not the kind's, a model that cannot be loaded, and a plan that the artefact cannot carry.
    """
    check_kind(kind, plan.deployment.engine)
    made = planned(plan, served_model(model), in_container=kind in _CONTAINERS)
    module, function, _ = _WRITERS[kind]
    write: Callable[[Planned], str] = getattr(import_module("headcount.report.launch." + module), function)
    return write(made)
