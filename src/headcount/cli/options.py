"""Options that several commands share, and the way from parsed options to a ``Deployment``."""

from __future__ import annotations

import argparse
import os
import sys

from headcount.errors import UnknownNameError, UsageError
from headcount.units import parse_bytes, parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from headcount.engines.calibration import Calibration
    from headcount.planner.plan import Deployment
    from headcount.spec.model import ModelSpec


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help at a fixed width. argparse would import shutil (and bz2, lzma, zlib: 2 ms) to ask the terminal's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=80)


class Parser(argparse.ArgumentParser):
    """argparse with our error law: one line, nearest match, exit 2. Options are never abbreviated."""

    def __init__(self, *, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Join ``--params -7e9`` to ``--params=-7e9``: a negative number is a value to be refused, not an option."""
        given = sys.argv[1:] if args is None else args
        options = given[: given.index("--")] if "--" in given else given
        for word in options:
            if word.startswith("--") and word.endswith(("=", "=--")):
                raise UsageError(f"option {word.partition('=')[0]} has no value ({self.prog} --help)")
            if not word:
                raise UsageError(
                    f"an argument is empty, such as an unset shell variable gives ({self.prog} --help)"
                )
        joined: list[str] = []
        for place, word in enumerate(given):
            number = len(word) > 1 and word[0] == "-" and (word[1].isdigit() or word[1] == ".")
            valued = place < len(options) and joined and self._takes_value(joined[-1])
            if number and valued and "=" not in joined[-1]:
                joined[-1] += "=" + word
            else:
                joined.append(word)
        return super().parse_known_args(joined, namespace)

    def _takes_value(self, word: str) -> bool:
        action = self._option_string_actions.get(word)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; ``unrecognized arguments`` gains the nearest option."""
        given = message.removeprefix("unrecognized arguments: ")
        if given != message:
            word = given.split()[0]
            if word.startswith("-"):
                options = [
                    option for action in self._actions for option in action.option_strings if len(option) > 2
                ]
                raise UnknownNameError(
                    what="option", given=word.split("=")[0], allowed=options, hint=f"{self.prog} --help"
                )
            raise UsageError(
                f"unexpected argument {word[:60]!r}; {self.prog} takes one MODEL ({self.prog} --help)"
            )
        raise UsageError(f"{message} ({self.prog} --help)")


def add_model_options(parser: Parser) -> None:
    """MODEL and the what-ifs that change it."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="catalogue name, config.json, *.safetensors, *.gguf, a directory, a Hugging Face id, "
        "or layers=32,hidden=4096,heads=32[,kv_heads=8,head_dim=128,ffn=11008,vocab=32000]",
    )
    parser.add_argument("--kv-heads", metavar="N", help="what-if: this many key/value heads (another model)")
    parser.add_argument(
        "--params", metavar="N", help="nominal parameter count, such as 7e9, in place of the exact one"
    )
    parser.add_argument(
        "--weights",
        metavar="DTYPE",
        default="auto",
        help="fp16, bf16, fp32, fp8, int8, int4, awq, gptq, nf4, mxfp4, nvfp4 (default: as stored)",
    )
    parser.add_argument(
        "--kv",
        metavar="DTYPE",
        default="auto",
        help="fp16, bf16, fp8, int8, int8_per_token_head, q8_0, q4_0, nvfp4, ... (default: 16 bits)",
    )


def add_output_options(parser: Parser) -> None:
    """``--json`` and ``--explain``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--explain", action="store_true", help="print each term: formula, numbers, value, source"
    )


def add_emit_option(parser: Parser) -> None:
    """``--emit``."""
    parser.add_argument(
        "--emit",
        metavar="KIND",
        help="print how to start it: vllm, sglang, llama-server, ollama, tensorrt-llm, docker-compose, kubernetes, ray",
    )


def add_deployment_options(parser: Parser) -> None:
    """Card, engine, layout and memory options of ``fit`` and ``book``."""
    parser.add_argument(
        "--gpu", metavar="NAME", help="a100-80gb, h100-80gb, l40s, rtx-4090, ... (headcount gpus)"
    )
    parser.add_argument(
        "--context", metavar="TOKENS", help="length of every conversation, prompt and answer together"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        default="vllm",
        help="vllm (default), sglang, llama.cpp, ollama, tensorrt-llm, transformers or textbook",
    )
    parser.add_argument(
        "--engine-version", metavar="X", help="rules of that version (default: the newest modelled)"
    )
    for size, words in (("tp", "tensor parallel"), ("pp", "pipeline stages"), ("dp", "replicas")):
        parser.add_argument(f"--{size}", metavar="N", help=f"fix the {words} size")
    parser.add_argument(
        "--gpus-per-node", metavar="N", default="8", help="cards that share the fast link (default 8)"
    )
    parser.add_argument("--reserve", metavar="FRAC", help="fraction of each card kept free")
    parser.add_argument("--utilization", metavar="FRAC", help="fraction of each card the engine may use")
    parser.add_argument("--memory", metavar="SIZE", help="memory of each card, such as 80GB or 79.2GiB")
    parser.add_argument(
        "--max-batched-tokens",
        metavar="N",
        help="tokens of one batch: vLLM's max_num_batched_tokens, llama.cpp's ubatch, ...",
    )
    parser.add_argument(
        "--max-seqs",
        metavar="N",
        help="sequences at a time: vLLM's max_num_seqs, SGLang's max_running_requests, ...",
    )
    parser.add_argument(
        "--engine-arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument of the engine by its own name, such as block-size=32; may be repeated",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="measured terms that verify --save wrote, in place of predicted ones",
    )
    parser.add_argument(
        "--price", metavar="USD", help="price of one GPU hour (default: the dated price file)"
    )
    parser.add_argument(
        "--allow-long-context", action="store_true", help="allow a context past the model's positions"
    )


def optional_count(text: str | None, *, what: str, maximum: int = 10**9) -> int | None:
    """A positive whole number, or None when the option was not given."""
    return None if text is None else parse_count(text, what=what, maximum=maximum)


def required(value: str | None, option: str, example: str) -> str:
    """The option's text; UsageError with an example when it is missing."""
    if value is None:
        raise UsageError(f"{option} is required, such as {option} {example}")
    return value


def read_asked_model(args: argparse.Namespace) -> ModelSpec:
    """Read MODEL with ``--kv-heads`` and ``--params`` applied."""
    from headcount.spec.reader import read_model

    return read_model(
        args.model,
        kv_heads=optional_count(args.kv_heads, what="--kv-heads", maximum=2**20),
        nominal_parameters=optional_count(args.params, what="--params", maximum=10**15),
    )


def head_change_warning(args: argparse.Namespace, model: ModelSpec) -> tuple[str, ...]:
    """Say what a changed number of key/value heads does to the model: it is another one."""
    if args.kv_heads is None:
        return ()
    from headcount.spec.reader import read_model

    base = read_model(args.model)
    change = model.parameters - base.parameters
    if not change:
        return ()
    return (
        f"--kv-heads {args.kv_heads} is another model: {change:+,} parameters, other quality, needs training "
        "(the weights of this model do not become it)",
    )


def read_deployment(args: argparse.Namespace, model: ModelSpec) -> Deployment:
    """Put card, engine, settings and bounds together; every value is checked here, before anything is computed."""
    from headcount.engines import Settings, engine
    from headcount.hardware import accelerator
    from headcount.planner.plan import Deployment

    card = accelerator(required(args.gpu, "--gpu", "a100-80gb"))
    settings = Settings(
        weights=args.weights,
        kv=args.kv,
        reserve=None if args.reserve is None else parse_fraction(args.reserve, what="--reserve", high=0.99),
        utilization=None
        if args.utilization is None
        else parse_fraction(args.utilization, what="--utilization", low=0.01),
        memory_bytes=None if args.memory is None else parse_bytes(args.memory, what="--memory"),
        max_num_batched_tokens=optional_count(args.max_batched_tokens, what="--max-batched-tokens"),
        max_num_seqs=optional_count(args.max_seqs, what="--max-seqs"),
        arguments=read_engine_arguments(args.engine_arg),
        calibration=_calibration(args.calibration),
    )
    return Deployment(
        model=model,
        engine=engine(args.engine, args.engine_version),
        accelerator=card,
        settings=settings,
        gpus_per_node=parse_count(args.gpus_per_node, what="--gpus-per-node", maximum=1024),
        max_gpus=parse_count(getattr(args, "max_gpus", "4096"), what="--max-gpus", maximum=10**6),
        allow_pp=bool(getattr(args, "allow_pp", False)),
        tp=optional_count(args.tp, what="--tp", maximum=4096),
        pp=optional_count(args.pp, what="--pp", maximum=4096),
        dp=optional_count(args.dp, what="--dp", maximum=10**6),
    )


def _calibration(path: str | None) -> Calibration | None:
    if path is None:
        return None
    from headcount.engines.calibration import read_calibration

    return read_calibration(path)


def read_engine_arguments(given: list[str]) -> tuple[tuple[str, str], ...]:
    """``["block-size=32", "enforce-eager"]`` -> pairs; a flag has no value. A name given twice is refused."""
    from headcount.engines.arguments import plain

    pairs: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = plain(name)
        if not name:
            raise UsageError(f"--engine-arg {text!r} has no name; write NAME=VALUE")
        if name in pairs:
            raise UsageError(f"--engine-arg {name} is given twice")
        pairs[name] = value
    return tuple(pairs.items())


def hourly_price(args: argparse.Namespace, deployment: Deployment) -> tuple[float | None, str]:
    """``(USD per GPU hour, where it comes from)``: ``--price``, else the dated price file, else nothing."""
    if args.price is not None:
        from headcount.units import parse_price

        return parse_price(args.price, what="--price"), "--price"
    from headcount.hardware import price

    found = price(deployment.accelerator.name)
    if found is None:
        return None, ""
    return found.usd_per_hour, f"{found.provider} {found.region}, {found.kind}, as of {found.as_of}"


def missing_extra(command: str, error: ModuleNotFoundError) -> Exception:
    """What to raise when a command runs the transformer and a package of the extra is not installed.

    A module of our own that is missing is a defect, not the caller's to mend: that error is returned as it is.
    """
    module = (error.name or "").partition(".")[0]
    if module in ("", "headcount"):
        return error
    return UsageError(
        f"{command} needs {module}, which is not installed: pip install 'headcount[transformer]', "
        "or in a checkout: pip install -c constraints.txt '.[transformer]'"
    )


def wants_colour() -> bool:
    """Colour only on a terminal, and never when NO_COLOR is set or the terminal is dumb."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
