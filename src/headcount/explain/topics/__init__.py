"""The topics of ``explain``: one line each here, one module each beside this file, imported when asked for."""

from __future__ import annotations

from headcount.errors import UnknownNameError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.asked import Asked
    from headcount.explain.derivation import Derivation

WHAT_IF = ("example", "set", "causal", "scale")


class Topic(Record):
    """A topic: what it answers, which options it reads, whether it runs tensors, other names it is asked for by.

    chapters      of docs/derivations, without their ending
    experiments   of ``headcount experiment`` that test its claims
    """

    name: str
    words: str
    options: tuple[str, ...] = ()
    needs_torch: bool = True
    also: tuple[str, ...] = ()
    chapters: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()

    @property
    def see(self) -> str:
        """Where to read on, one line."""
        chapters = ", ".join(f"{name}.md" for name in self.chapters)
        tested = f"; headcount experiment {', '.join(self.experiments)}" if self.experiments else ""
        return f"See docs/derivations/{chapters}{tested}"

    @property
    def module(self) -> str:
        """Where its ``derive`` is."""
        return "headcount.explain.topics." + self.name.replace("-", "_")


_TOPICS = (
    Topic(
        name="attention",
        chapters=("naive", "composed"),
        words="Q, K, V, scores, softmax, output; two heads worked out",
        options=WHAT_IF,
        also=("qkv",),
    ),
    Topic(
        name="backward",
        chapters=("naive", "arithmetic"),
        experiments=("gradients",),
        words="the gradient walked back through attention, four steps",
        options=(*WHAT_IF, "svg"),
        also=("gradient",),
    ),
    Topic(
        name="softmax",
        chapters=("softmax", "log_softmax"),
        experiments=("saturation",),
        words="overflow at 88.7, the shift by the maximum, merging sums",
        also=("overflow", "stability"),
    ),
    Topic(
        name="jacobian",
        chapters=("softmax",),
        experiments=("gradients",),
        words="how weights answer to scores; rank n - 1, no projection",
        options=(*WHAT_IF, "seed"),
    ),
    Topic(
        name="scaling",
        chapters=("naive",),
        experiments=("variance", "scaling"),
        words="why 1/sqrt(d_k): the argument, measured, and where it ends",
        options=(*WHAT_IF[:3], "seed"),
        also=("variance", "saturation"),
    ),
    Topic(
        name="heads",
        chapters=("rearrange", "naive"),
        experiments=("heads",),
        words="splitting the width: opinions, rank, groups, trained heads",
        options=(*WHAT_IF, "seed"),
        also=("mha", "gqa", "mqa", "multi-head"),
    ),
    Topic(
        name="positions",
        chapters=("positions", "rotary"),
        experiments=("equivariance",),
        words="no order without them; sinusoids, rotary: i - j alone",
        options=("seed",),
        also=("rope", "rotary"),
    ),
    Topic(
        name="masks",
        chapters=("masks",),
        words="causal, window, chunks, prefix, padding, packed: drawn, applied",
        options=("example", "set", "scale"),
        also=("causal",),
    ),
    Topic(
        name="tiled",
        chapters=("online_softmax", "tiled"),
        words="online softmax: attention without its score matrix",
        options=("seed",),
        also=("online", "online-softmax", "flash"),
    ),
    Topic(
        name="flops",
        chapters=("linear",),
        experiments=("crossover", "recurrent"),
        words="multiply-adds and FLOPs, five crossovers of a model",
        options=("model", "context"),
        needs_torch=False,
        also=("macs", "crossovers"),
    ),
    Topic(
        name="kv-cache",
        chapters=("naive",),
        words="bytes per token, the work a cache saves",
        options=("model", "context"),
        needs_torch=False,
        also=("cache", "kv"),
    ),
    Topic(
        name="latent",
        chapters=("latent",),
        words="latent attention (MLA): one cached vector for all heads",
        options=("model", "seed"),
        also=("mla",),
    ),
    Topic(
        name="block",
        chapters=("layer_norm", "linear"),
        experiments=("norms",),
        words="post-norm, pre-norm, decoder; shares, gradients with depth",
        options=("seed",),
        also=("encoder", "decoder", "residual"),
    ),
    Topic(
        name="norms",
        chapters=("layer_norm", "rms_norm"),
        experiments=("norms",),
        words="LayerNorm and RMSNorm, and what their gradients lose",
        also=("layernorm", "rmsnorm", "norm"),
    ),
    Topic(
        name="cross-entropy",
        chapters=("cross_entropy", "log_softmax"),
        words="log-sum-exp, the gradient p - q, label smoothing",
        options=("seed",),
        also=("loss", "perplexity"),
    ),
    Topic(
        name="graph",
        chapters=("composed",),
        words="the computational graph: values down, gradients up",
        options=(*WHAT_IF, "seed", "collapse", "svg"),
    ),
)
TOPICS = {topic.name: topic for topic in _TOPICS}


def find_topic(name: str) -> Topic:
    """The topic of that name; UnknownNameError gives the nearest."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    by_name = {**{other: topic for topic in _TOPICS for other in topic.also}, **TOPICS}
    if key not in by_name:
        raise UnknownNameError(what="topic", given=name, allowed=by_name, hint="headcount explain lists them")
    return by_name[key]


def derive(name: str, asked: Asked) -> Derivation:
    """Compute a topic's derivation now.

    Raises
    ------
    UnknownNameError: no such topic. ModuleNotFoundError: the topic runs tensors and PyTorch is not installed.
    """
    topic = find_topic(name)
    from importlib import import_module

    derivation: Derivation = import_module(topic.module).derive(asked)
    return derivation.replace(see=topic.see)
