"""The experiments by name, what each may be asked, and ``run``: the one door to all of them.

PyTorch is imported only when an experiment runs, so listing them needs none.
"""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UnknownNameError, UsageError
from headcount.experiments.option import Experiment, Option
from headcount.experiments.result import Result

MOST_REPEATS = 100
MOST_SEED = 2**63 - 1


def _list(
    name: str, words: str, default: tuple[int, ...], quick: tuple[int, ...], least: int, most: int
) -> Option:
    return Option(name=name, words=words, default=default, quick=quick, least=least, most=most)


def _count(name: str, words: str, default: int, quick: int, least: int, most: int) -> Option:
    return Option(name=name, words=words, default=default, quick=quick, least=least, most=most)


_THREADS = _count("threads", "threads of PyTorch", 1, 1, 1, 256)
_POWERS = tuple(2**power for power in range(1, 11))
_WIDTHS = (4, 16, 64, 128, 256, 1024)

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        Experiment(
            name="variance",
            question="is Var(q.k) = d_k, and is sqrt(d_k) the right divisor?",
            repeats=3,
            seconds=45,
            options=(
                _count("pairs", "pairs (q, k) of each repeat", 200_000, 20_000, 1000, 10**7),
                _list("widths", "values of d_k", _POWERS, (2, 16, 128), 1, 8192),
                Option(
                    name="rho",
                    words="correlations of q and k, 0 to 1",
                    default=(0.0, 0.1, 0.5),
                    quick=(0.0, 0.5),
                    least=0.0,
                    most=1.0,
                ),
            ),
        ),
        Experiment(
            name="saturation",
            question="do unscaled scores saturate softmax as d_k grows?",
            repeats=5,
            seconds=10,
            options=(
                _list("widths", "values of d_k", _WIDTHS, (4, 64, 1024), 1, 8192),
                _list("keys", "keys per row, n", (64, 1024), (64,), 2, 4096),
                _count("rows", "rows (queries) of each repeat", 2048, 512, 64, 10**6),
            ),
        ),
        Experiment(
            name="gradients",
            question="does softmax's gradient vanish without the scaling?",
            repeats=5,
            seconds=30,
            options=(
                _list("widths", "values of d_k", _WIDTHS, (4, 64, 1024), 1, 8192),
                _list("keys", "keys per row, n", (2, 64, 1024), (2, 64), 2, 4096),
                _count("rows", "rows (queries) of each repeat", 4096, 1024, 64, 10**6),
            ),
        ),
        Experiment(
            name="scaling",
            question="does training fail without 1/sqrt(d_k)?",
            repeats=3,
            seconds=240,
            options=(
                _list("head_widths", "values of d_k, one head", (64, 256), (64,), 1, 2048),
                _count("steps", "training steps", 400, 40, 20, 10**6),
                _count("tokens", "tokens of a sequence", 16, 8, 2, 512),
                Option(
                    name="adam_rate",
                    words="learning rate of Adam",
                    default=1e-3,
                    quick=1e-3,
                    least=1e-6,
                    most=10.0,
                ),
                Option(
                    name="sgd_rates",
                    words="learning rates of gradient descent",
                    default=(0.03, 0.1),
                    quick=(0.1,),
                    least=1e-6,
                    most=10.0,
                ),
            ),
        ),
        Experiment(
            name="heads",
            question="does one large head fail where small ones learn?",
            repeats=3,
            seconds=200,
            options=(
                _list("heads", "numbers of heads, D wide together", (1, 2, 4), (1, 4), 1, 64),
                _list("blocks", "blocks; 0: attention alone", (0, 1, 2), (0, 1), 0, 8),
                _count("width", "model width D", 64, 32, 8, 512),
                _count("steps", "training steps", 600, 40, 20, 10**6),
                _count("tokens", "tokens of a sequence", 16, 8, 4, 512),
            ),
        ),
        Experiment(
            name="norms",
            question="does the place of the norm change the gradients?",
            repeats=5,
            seconds=7,
            options=(
                _list("depths", "numbers of blocks", (2, 6, 12, 24), (2, 6), 2, 96),
                _count("width", "model width D", 64, 32, 8, 512),
                _count("tokens", "tokens of a sequence", 32, 16, 2, 1024),
            ),
        ),
        Experiment(
            name="equivariance",
            question="does attention know the order of its tokens?",
            repeats=5,
            seconds=4,
            options=(
                _count("tokens", "tokens of a sequence", 32, 16, 2, 2048),
                _count("width", "model width D, 4 heads", 64, 32, 8, 2048),
            ),
        ),
        Experiment(
            name="recurrent",
            question="is a recurrent layer cheaper than attention?",
            repeats=7,
            seconds=14,
            options=(
                _count("width", "model width d", 256, 128, 8, 4096),
                _list(
                    "lengths",
                    "sequence lengths n",
                    (32, 64, 128, 256, 512, 1024, 2048, 4096),
                    (32, 128, 512, 2048),
                    2,
                    32768,
                ),
                _THREADS,
            ),
        ),
        Experiment(
            name="crossover",
            question="does attention's time overtake where its FLOPs do?",
            repeats=5,
            seconds=40,
            options=(
                Option(
                    name="model",
                    words="a model: its widths are timed",
                    default="smollm2-135m",
                    quick="smollm2-135m",
                ),
                _list(
                    "lengths",
                    "sequence lengths n",
                    (64, 128, 256, 512, 1024, 2048, 3072),
                    (128, 512, 1024, 3072),
                    16,
                    65536,
                ),
                Option(
                    name="mask",
                    words="everything or causal",
                    default="everything",
                    quick="everything",
                    choices=("everything", "causal"),
                ),
                _THREADS,
            ),
        ),
    )
}


def experiment(name: str) -> Experiment:
    """The entry of that name; UnknownNameError lists the nearest."""
    if name not in EXPERIMENTS:
        raise UnknownNameError(what="experiment", given=name, allowed=EXPERIMENTS)
    return EXPERIMENTS[name]


def run(
    name: str, *, seed: int = 0, repeats: int | None = None, quick: bool = False, **options: object
) -> Result:
    """Run one experiment.

    ``seed`` fixes every random number, ``repeats`` is how many independent draws (or trainings, or timings) the spread
    is taken over, ``quick`` uses the small defaults of the registry; ``options`` override either defaults.

    Raises
    ------
    UnknownNameError: no such experiment.
    UsageError: a value outside its range, an option the experiment does not take.
    ModuleNotFoundError: a package of the transformer extra is not installed.
    """
    entry = experiment(name)
    values: dict[str, object] = {
        option.name: option.quick if quick else option.default for option in entry.options
    }
    for key, value in options.items():
        values[key] = entry.option(key).check(value)
    asked = repeats if repeats is not None else entry.quick_repeats if quick else entry.repeats
    _within("--seed", seed, 0, MOST_SEED)
    _within("--repeats", asked, 1, MOST_REPEATS)
    for package in ("torch", "jaxtyping"):
        import_module(package)
    module = import_module(f"headcount.experiments.{name}")
    result: Result = module.measure(seed=seed, repeats=asked, **values)
    return result


def _within(what: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{what} must be whole, {least:,} to {most:,}; given {value!r}")
