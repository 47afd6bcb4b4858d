"""What every kind of artefact is written from: the plan, the engine's launch line, what is loaded, and what to say."""

from __future__ import annotations

from headcount import __version__
from headcount.engines.base import Case, Launch
from headcount.errors import LayoutError, UsageError
from headcount.planner.plan import Plan
from headcount.record import Record
from headcount.report.launch.served_model import ServedModel
from headcount.units import ceil_div, gib

# The variable by which a process is given some of a host's GPUs.
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
# Programs that listen on the loopback alone unless they are told otherwise.
_LOOPBACK = ("sglang", "llama.cpp")
# Images whose entry point is the server itself, so that a container is given its arguments only.
_OWN_ENTRY_POINT = ("llama-server",)


class Planned(Record):
    """One plan, ready to be written; ``notes`` become comment lines of the artefact."""

    plan: Plan
    launch: Launch
    served: ServedModel
    notes: tuple[str, ...]

    @property
    def replicas(self) -> int:
        """Servers to start, spare ones included."""
        return self.plan.layout.dp

    @property
    def gpus_per_replica(self) -> int:
        """``tp x pp``."""
        return self.plan.layout.tp * self.plan.layout.pp

    @property
    def engine_words(self) -> str:
        """``vllm 0.33.0``."""
        engine = self.plan.deployment.engine
        return f"{engine.name} {engine.version}"

    @property
    def slug(self) -> str:
        """A name that Kubernetes and Compose allow: a letter, then letters, digits and dashes, at most 40."""
        last = self.served.name.rstrip("/").rpartition("/")[2].lower()
        kept = "".join(ch if ch.isascii() and ch.isalnum() else "-" for ch in last)
        words = "-".join(word for word in kept.split("-") if word)[:40].strip("-")
        return words if words and words[0].isalpha() else f"llm-{words}".rstrip("-")

    def header(self, extra: tuple[str, ...] = ()) -> list[str]:
        """The comment lines: which plan this is, what it holds, what to know. No date and no host: it is stable."""
        plan = self.plan
        deployment, replica = plan.deployment, plan.replica
        wanted = plan.users if plan.users is not None else plan.conversations
        between = f" ({replica.low:,} to {replica.high:,})" if replica.low != replica.high else ""
        plural = "s" if self.replicas > 1 else ""
        cards = f"{self.gpus_per_replica} GPU{'s' if self.gpus_per_replica > 1 else ''}"
        shown = "".join(ch if ch.isprintable() else "?" for ch in deployment.model.name)
        lines = [
            f"headcount {__version__}: {shown} on {plan.layout.gpus:,} x {deployment.accelerator.name} for "
            f"{wanted:,} conversations of {plan.context:,} tokens",
            f"{self.engine_words}, {self.replicas} replica{plural} of {cards}, a replica holds "
            f"{replica.conversations:,}{between}",
        ]
        if plan.spare_replicas:
            lines.append(f"{plan.spare_replicas} of the {self.replicas} replicas may fail")
        return [f"# {line}" for line in (*lines, *extra, *self.served.notes, *self.notes)]

    def container_argv(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """``(entry point, arguments)`` inside a container; the first is empty where the image's own is the server."""
        argv = self.launch.argv
        if self.plan.deployment.engine.name in _LOOPBACK and "--host" not in argv:
            argv = (*argv, "--host", "0.0.0.0")
        if argv[0] in _OWN_ENTRY_POINT:
            return (), argv[1:]
        return argv[:1], argv[1:]


def planned(plan: Plan, served: ServedModel) -> Planned:
    """Ask the plan's engine for its launch line.

    Raises LayoutError when the plan holds nothing, UsageError when the engine is no server or cannot be told the plan.
    """
    if not plan.replica.conversations:
        raise LayoutError(f"nothing fits, so there is nothing to launch: {plan.replica.binding}")
    deployment = plan.deployment
    case = Case(
        model=deployment.model,
        accelerator=deployment.accelerator,
        layout=plan.layout.replace(dp=1),
        context=plan.context,
        settings=deployment.settings,
    )
    launch = deployment.engine.launch(case, model=served.name, concurrency=plan.replica.conversations)
    notes = _notes(plan, launch)
    if deployment.engine.name == "llama.cpp" and not served.name.lower().endswith(".gguf"):
        notes.append(f"llama-server loads GGUF files: {served.name} must be a repository that holds them")
    return Planned(plan=plan, launch=launch, served=served, notes=tuple(notes))


def _notes(plan: Plan, launch: Launch) -> list[str]:
    deployment = plan.deployment
    settings, model, engine = deployment.settings, deployment.model, deployment.engine
    notes = []
    asked = settings.weights.strip().lower()
    made = any(word.startswith(("--quantization", "--dtype")) for word in launch.argv)
    if asked != "auto" and not made:
        stored = model.quantization.method if model.quantization else model.dtype
        notes.append(
            f"weights {asked}: {engine.name} {engine.version} does not make them from {stored} ones; "
            f"what it loads must be a checkpoint in {asked}"
        )
    if model.nominal_parameters is not None:
        notes.append(
            f"planned with {model.nominal_parameters:,} parameters (--params), not the checkpoint's count"
        )
    if settings.memory_bytes is not None:
        notes.append(
            f"planned with {gib(settings.memory_bytes)} a card (--memory); the server asks the card itself"
        )
    if settings.calibration is not None:
        notes.append("planned with measured terms (--calibration); they are no flag of the server")
    nodes = ceil_div(plan.layout.tp * plan.layout.pp, deployment.gpus_per_node)
    if nodes > 1:
        notes.append(
            f"one replica spans {nodes} nodes of {deployment.gpus_per_node} GPUs: a Ray cluster joins them"
        )
    return notes


def require_one_host(made: Planned, kind: str) -> None:
    """Raise UsageError when a replica is larger than a node: ``kind`` starts a replica on one host."""
    per_node = made.plan.deployment.gpus_per_node
    if made.gpus_per_replica > per_node:
        raise UsageError(
            f"--emit {kind} starts a replica on one host, and this one takes {made.gpus_per_replica} GPUs of nodes of "
            f"{per_node} (--gpus-per-node); --emit ray spans nodes"
        )


def require_image(made: Planned, kind: str) -> str:
    """The container image; UsageError where none is known for the engine on this card."""
    deployment = made.plan.deployment
    vendor = deployment.accelerator.vendor
    if vendor not in DEVICES:
        raise UsageError(f"--emit {kind} knows how containers get NVIDIA and AMD GPUs, not {vendor} ones")
    if not made.launch.image:
        raise UsageError(f"--emit {kind}: no public image of {made.engine_words} is known for {vendor} cards")
    return made.launch.image


def dollars_doubled(words: tuple[str, ...]) -> list[str]:
    """Compose and Kubernetes both expand ``$``; ``$$`` is the sign itself in both."""
    return [word.replace("$", "$$") for word in words]
