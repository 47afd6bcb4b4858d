"""``headcount completion bash|zsh``: print a script; load it with ``source <(headcount completion bash)``.

Commands and options are read off the parsers themselves, names off the catalogue and the accelerator file.
"""

from __future__ import annotations

import sys
from importlib import import_module

from headcount.cli.main import COMMANDS
from headcount.cli.options import Parser
from headcount.errors import UnknownNameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

_SCRIPT = """# headcount completion; load with: source <(headcount completion {shell})
{prelude}_headcount() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    case "$previous" in
        --gpu) words="{gpus}" ;;
        --engine) words="{engines}" ;;
        --weights) words="{weights}" ;;
        --kv) words="{kv}" ;;
        --emit) words="vllm sglang llama-server ollama tensorrt-llm docker-compose kubernetes ray" ;;
        --model) words="{models}" ;;
        *) if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
           else case "${{COMP_WORDS[1]}}" in
{options}
           esac; fi ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ "$COMP_CWORD" -eq 2 ] && [[ "$word" != -* ]]; then COMPREPLY+=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F _headcount headcount
"""
_PRELUDES = {
    "bash": "",
    "zsh": "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n",
}


def make_parser() -> Parser:
    """Options of ``completion``."""
    parser = Parser(prog="headcount completion", description="Print a shell completion script.")
    parser.add_argument("shell", metavar="SHELL", help="bash or zsh")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the script, return 0; UnknownNameError for another shell."""
    if args.shell not in _PRELUDES:
        raise UnknownNameError(what="shell", given=args.shell, allowed=_PRELUDES)
    from headcount.cost.weights import PLAIN_BYTES
    from headcount.engines import ENGINES
    from headcount.experiments.registry import EXPERIMENTS
    from headcount.explain.topics import TOPICS
    from headcount.hardware import accelerators
    from headcount.spec import catalogue
    from headcount.spec.kv_format import KV_FORMATS
    from headcount.spec.quantization import RECIPES

    models = " ".join(model["name"] for model in catalogue.index())
    rows = []
    for command in COMMANDS:
        module = import_module("headcount.cli." + command)
        parser = module.make_parser()
        options = " ".join(option for action in parser._actions for option in action.option_strings)
        places = {action.dest for action in parser._actions if not action.option_strings}
        if "model" in places:
            options += f" $([ $COMP_CWORD -eq 2 ] && echo {models})"
        if "topic" in places:
            options += f" $([ $COMP_CWORD -eq 2 ] && echo {' '.join(TOPICS)})"
        if "experiment" in places:
            options += f" $([ $COMP_CWORD -eq 2 ] && echo {' '.join(EXPERIMENTS)})"
        if any(action.dest == "task" for action in parser._actions):
            options += f" $([ $COMP_CWORD -eq 2 ] && echo {' '.join(module.TASKS)})"
        rows.append(f'               {command}) words="{options}" ;;')
    sys.stdout.write(
        _SCRIPT.format(
            shell=args.shell,
            prelude=_PRELUDES[args.shell],
            gpus=" ".join(card.name for card in accelerators()),
            engines=" ".join(ENGINES),
            weights=" ".join(["auto", *PLAIN_BYTES, *RECIPES]),
            kv=" ".join(["auto", *KV_FORMATS]),
            commands=" ".join(COMMANDS),
            models=models,
            options="\n".join(rows),
        )
    )
    return 0
