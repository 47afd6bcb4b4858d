"""What every kind of artefact is written from: the plan, the engine's launch line, what is loaded, and what to say."""

from __future__ import annotations

import os
import re

from headcount import __version__
from headcount.engines.base import Launch
from headcount.engines.llamacpp.weights import weight_mix
from headcount.errors import LayoutError, UsageError
from headcount.planner.plan import Plan
from headcount.record import Record
from headcount.report.launch.gguf import GGUF_ENGINES, gguf_model
from headcount.report.launch.served_model import ServedModel
from headcount.units import ceil_div, gib

# The variable by which a process is given some of a host's GPUs.
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
# How a replica that is larger than a node is started, by engine; the others run on one host only.
_JOINED = {
    "vllm": "a Ray cluster joins them",
    "sglang": "start the command on each of them with --nnodes {nodes} --node-rank I --dist-init-addr HOST:PORT",
    "tensorrt-llm": "an MPI launcher starts its ranks (mpirun or srun with trtllm-llmapi-launch)",
}
# Programs that listen on the loopback alone unless they are told otherwise.
_LOOPBACK = ("sglang", "llama.cpp")
# Images whose entry point is the server itself, so that a container is given its arguments only.
_OWN_ENTRY_POINT = ("llama-server",)
# Types that transformers 5.24.0 has no class for: their repositories bring their own.
_OWN_CODE = ("baichuan", "chatglm", "internlm2", "qwen")
_TAG = re.compile(r"[\w][\w.-]{0,127}|docker\.io/[\w./-]+")


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
        last = self.served.name.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
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
        lines = [
            f"headcount {__version__}: {deployment.model.name} on {plan.layout.gpus:,} x {deployment.accelerator.name} for "
            f"{wanted:,} conversations of {plan.context:,} tokens",
            f"{self.engine_words}, {self.replicas} replica{plural} of {cards}, a replica holds "
            f"{replica.conversations:,}{between}",
        ]
        if plan.spare_replicas:
            lines.append(f"{plan.spare_replicas} of the {self.replicas} replicas may fail")
        # Names of models and folders are others' words: a line break in one would end the comment.
        whole = (*lines, *extra, *self.served.notes, *self.notes)
        return ["# " + "".join(ch if ch.isprintable() else "?" for ch in line) for line in whole]

    def image_notes(self) -> tuple[str, ...]:
        """What to know of the container image: a tag that is not the planned version's, or one that need not exist."""
        image, version = self.launch.image, self.plan.deployment.engine.version
        if not image.rpartition(":")[2].endswith(version):
            return (f"the image is not pinned: {image} moves, and the plan is for {self.engine_words}",)
        if self.plan.deployment.engine.name == "llama.cpp":
            return (f"images are made once a day: where {image} does not exist, take the next build's",)
        return ()

    def container_argv(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """``(entry point, arguments)`` inside a container; the first is empty where the image's own is the server."""
        argv = self.launch.argv
        if self.plan.deployment.engine.name in _LOOPBACK and "--host" not in argv:
            argv = (*argv, "--host", "0.0.0.0")
        if argv[0] in _OWN_ENTRY_POINT:
            return (), argv[1:]
        return argv[:1], argv[1:]


def planned(plan: Plan, served: ServedModel, *, in_container: bool = False) -> Planned:
    """Ask the plan's engine for its launch line.

    Raises LayoutError when the plan holds nothing, UsageError when the engine is no server or cannot be told the plan, or
    when a replica is larger than the one host that its engine runs on.
    """
    if not plan.replica.conversations:
        raise LayoutError(f"nothing fits, so there is nothing to launch: {plan.replica.binding}")
    deployment = plan.deployment
    name = deployment.engine.name
    gpus, per_node = plan.layout.tp * plan.layout.pp, deployment.gpus_per_node
    if gpus > per_node and name not in _JOINED:
        program = "llama-server" if name == "llama.cpp" else name
        raise UsageError(
            f"{program} runs on one host: a replica of {gpus} GPUs is larger than a node of {per_node} (--gpus-per-node)"
        )
    if name in GGUF_ENGINES:
        served = gguf_model(plan, served, in_container=in_container)
    case = deployment.case(plan.layout.replace(dp=1), plan.context)
    launch = deployment.engine.launch(case, model=served.name, concurrency=plan.replica.conversations)
    if gpus > per_node and name == "vllm":
        # A node that is too small is an error unless Ray is asked for (config/parallel.py of 0.33).
        launch = launch.replace(argv=(*launch.argv, "--distributed-executor-backend", "ray"))
    return Planned(plan=plan, launch=launch, served=served, notes=tuple(_notes(plan, launch, served)))


def _notes(plan: Plan, launch: Launch, served: ServedModel) -> list[str]:
    deployment = plan.deployment
    settings, model, engine = deployment.settings, deployment.model, deployment.engine
    notes = []
    asked = settings.weights.strip().lower()
    made = any(word.startswith(("--quantization", "--dtype")) for word in launch.argv)
    if asked != "auto" and not made and engine.name not in GGUF_ENGINES:
        stored = model.quantization.method if model.quantization else model.dtype
        notes.append(
            f"weights {asked}: {engine.name} {engine.version} does not make them from {stored} ones; "
            f"what it loads must be a checkpoint in {asked}"
        )
    if model.family in _OWN_CODE and engine.name not in GGUF_ENGINES:
        notes.append(
            f"{model.family}: code in the repository reads its config or tokeniser; read it, then add --trust-remote-code"
        )
    if engine.name == "ollama":
        notes += _ollama_notes(plan, served)
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
        joined = _JOINED[engine.name].format(nodes=nodes)
        notes.append(f"one replica spans {nodes} nodes of {deployment.gpus_per_node} GPUs: {joined}")
    return notes


def _ollama_notes(plan: Plan, served: ServedModel) -> list[str]:
    """How the running server is given its model, and what no variable says."""
    import shlex

    settings = plan.deployment.settings
    mix = weight_mix(plan.deployment.model, settings.weights).upper()
    # A Modelfile's paths are relative to it.
    file = served.name if os.path.isabs(served.name) else f"./{served.name}"
    from_file = shlex.quote(f"FROM {file}")
    notes = [
        "then give it the model, a GGUF of your own or one that is published in that mix:",
        f"  echo {from_file} > Modelfile && ollama create NAME -f Modelfile",
        f"  ollama pull NAME:TAG, or ollama pull hf.co/ORG/REPOSITORY:{mix}"
        if not os.path.isabs(served.name)
        else "  ollama pull NAME:TAG",
    ]
    options = [(name, value) for name, value in settings.arguments if name in ("num-batch", "num-gpu")]
    if settings.max_num_batched_tokens is not None:
        options.append(("num-batch", str(settings.max_num_batched_tokens)))
    for name, value in options:
        parameter = name.replace("-", "_")
        notes.append(f"{parameter} {value} is no variable: PARAMETER {parameter} {value} in the Modelfile")
    return notes


def require_one_host(made: Planned, kind: str) -> None:
    """Raise UsageError when a replica is larger than a node: ``kind`` starts a replica on one host."""
    per_node = made.plan.deployment.gpus_per_node
    if made.gpus_per_replica > per_node:
        other = "; --emit ray spans nodes" if made.plan.deployment.engine.name == "vllm" else ""
        raise UsageError(
            f"--emit {kind} starts a replica on one host, and this one takes {made.gpus_per_replica} GPUs of nodes of "
            f"{per_node} (--gpus-per-node){other}"
        )


def require_image(made: Planned, kind: str) -> str:
    """The container image; UsageError where none is known for the engine on this card."""
    deployment = made.plan.deployment
    vendor = deployment.accelerator.vendor
    if vendor not in DEVICES:
        raise UsageError(f"--emit {kind} knows how containers get NVIDIA and AMD GPUs, not {vendor} ones")
    if not made.launch.image:
        raise UsageError(f"--emit {kind}: no public image of {made.engine_words} is known for {vendor} cards")
    tag = made.launch.image.rpartition(":")[2]
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"--emit {kind}: {tag} is no tag of an image; images are published of releases (--engine-version)"
        )
    return made.launch.image


def dollars_doubled(words: tuple[str, ...]) -> list[str]:
    """Compose and Kubernetes both expand ``$``; ``$$`` is the sign itself in both."""
    return [word.replace("$", "$$") for word in words]
