"""The cache of published engine starts, predicted by headcount, two peers and the stock formula, on the same rows in one run.

    cache per GPU      predicted / printed - 1, from model, card, utilization and settings alone (tokens where only they
                       were printed)
    bytes per token    predicted / (printed cache memory / printed tokens) - 1
    stock formula      cache = memory x utilization - parameters x 2 B / T;  tokens = cache / (2 L K H 2 B / T)

Every answer of headcount, kvfit and hf-mem is one process of its command line, as a user starts it. The peers read their
models from huggingface.co; they reach a stand-in on this machine that serves each row's config.json and a checkpoint of the
size that its tensors have, so they are neither changed nor slowed by a network. An answer that is not given is counted as
refused, not as an error.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install kvfit==0.3.0 hf-mem==0.5.6
    python benchmarks/accuracy_peers.py --peers-python /tmp/peers/bin/python [--rounds 3] [--logs FILE --configs DIR]

Needs openssl (a certificate for the stand-in, known only to the processes that this program starts).
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import ssl
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from headcount.errors import HeadcountError
from headcount.spec.attention import FullAttention, LatentAttention, SlidingWindow
from headcount.spec.model import ModelSpec
from headcount.units import GIB
from headcount.verify.accuracy import complete, judge, public_table, read_config, read_shape, read_table
from headcount.verify.case_of import Asked, ask
from headcount.verify.observation import Observation

TOOLS = ("headcount", "kvfit", "hf-mem", "stock formula")
HUB = "huggingface.co"
# Most of headcount's measured terms of vLLM come from these start-up logs: its errors there are no forecast.
MEASURED_ON = "llm-d-planner"
SHARD = "model-00001-of-00001.safetensors"
# Printed GiB have two decimals: figures this near each other are equal.
TIE = 0.0005
# headcount's name of a cache format -> kvfit's and hf-mem's; a name they do not have is passed on for them to refuse.
KVFIT_KV = {"int8_per_token_head_fp32": "int8", "int8_per_token_head": "int8"}
HF_MEM_KV = {"bf16": "bfloat16", "fp16": "bfloat16"}


class Question(NamedTuple):
    """One row, and what every tool is told: what the row leaves out is filled in once, the same for all.

    usable_bytes   the card's memory as the engine reads it x utilization
    stored_bytes   the checkpoint's tensors
    plain_bytes    all parameters in 16 bits
    published      the table's config, with its source; ``config`` is what the tools are given
    """

    row: Observation
    asked: Asked
    published: dict[str, Any]
    config: dict[str, Any]
    path: str
    usable_bytes: int
    utilization: float
    stored_bytes: int
    plain_bytes: int

    @property
    def repository(self) -> str:
        """One for each row: two rows of a model may pack its weights differently."""
        return f"rows/{self.row.id}"

    @property
    def shape(self) -> str:
        """Whether every layer keeps every token, which is what a figure per token presumes."""
        mixers = (m for layer, _ in self.asked.case.model.layer_runs() for m in layer.mixers)
        whole = all(isinstance(m, FullAttention | LatentAttention) for m in mixers)
        return "every layer keeps all tokens" if whole else "sliding or hybrid"


class Answer(NamedTuple):
    """What a tool said: bytes per GPU, tokens of a replica, bytes per token and GPU; or why it said nothing."""

    cache_bytes: float | None = None
    tokens: float | None = None
    token_bytes: float | None = None
    refusal: str = ""
    seconds: float = 0.0


Error = Callable[[Question, Answer], float | None]


class Heard(NamedTuple):
    """One question and what every tool answered."""

    question: Question
    answers: dict[str, Answer]

    @property
    def own_source(self) -> bool:
        """Whether headcount's terms of vLLM were measured on logs of this source."""
        return MEASURED_ON in self.question.row.source_url


class Hub(http.server.BaseHTTPRequestHandler):
    """The stand-in: a proxy that answers for huggingface.co itself and refuses every other host."""

    protocol_version = "HTTP/1.1"
    questions: ClassVar[dict[str, Question]] = {}
    tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        if self.path != f"{HUB}:443":
            self.send_error(502)
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def do_GET(self) -> None:
        parts = [part for part in urlsplit(self.path).path.split("/") if part]
        names = parts[2:4] if parts[:2] == ["api", "models"] else parts[:2]
        question = self.questions.get("/".join(names))
        body = None if question is None else serve(question, parts)
        status = 404 if body is None else 206 if self.headers["Range"] else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        """Say nothing: the streams belong to the tables."""


def serve(question: Question, parts: Sequence[str]) -> bytes | None:
    """What the hub holds of a model: its config, its listing, an index and the header of one shard."""
    size, layers = question.stored_bytes, len(question.asked.case.model.layers)
    kind, scale = ("BF16", 2) if question.asked.case.model.quantization is None else ("U8", 1)
    header = json.dumps({"weights": {"dtype": kind, "shape": [size // scale], "data_offsets": [0, size]}})
    index = {f"model.layers.{i}.weight": SHARD for i in range(layers)}
    files: dict[str, bytes] = {
        "config.json": json.dumps(question.config).encode(),
        "model.safetensors.index.json": json.dumps({"weight_map": index}).encode(),
        SHARD: struct.pack("<Q", len(header)) + header.encode(),
    }
    sizes = {name: size if name == SHARD else len(body) for name, body in files.items()}
    if parts[0] != "api":
        return files.get(parts[-1])
    if "tree" in parts:
        return json.dumps([{"type": "file", "path": n, "size": s} for n, s in sizes.items()]).encode()
    siblings = [{"rfilename": n, "size": s} for n, s in sizes.items()]
    counts = {"parameters": {kind: size // scale}, "total": size // scale}
    return json.dumps({"sha": "0" * 40, "siblings": siblings, "safetensors": counts}).encode()


def open_hub(folder: str, questions: Iterable[Question]) -> dict[str, str]:
    """Start the stand-in; returns the environment in which a process meets it."""
    key, certificate = os.path.join(folder, "key.pem"), os.path.join(folder, "certificate.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += f" -subj /CN={HUB} -addext subjectAltName=DNS:{HUB}"
    argv = [*command.split(), "-keyout", key, "-out", certificate]
    subprocess.run(argv, check=True, capture_output=True)
    Hub.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    Hub.tls.load_cert_chain(certificate, key)
    Hub.questions = {question.repository: question for question in questions}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    kept.pop("HF_TOKEN", None)
    return kept | {"HTTPS_PROXY": f"http://127.0.0.1:{server.server_port}", "SSL_CERT_FILE": certificate}


def start(argv: Sequence[str], environment: dict[str, str]) -> tuple[dict[str, Any] | None, str, float]:
    """Run one process; returns its JSON object, else the last line it said, and its seconds from spawn to exit."""
    begin = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - begin
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = [line for line in done.stderr.splitlines() if line.strip() and "potentially wrong" not in line]
        return (
            None,
            (said or [f"exit {done.returncode}, no message"])[-1].partition(" Valid options")[0][:160],
            seconds,
        )
    return found, "", seconds


def ask_headcount(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    row, case, engine, layout = (
        question.row,
        question.asked.case,
        question.asked.engine,
        question.asked.case.layout,
    )
    options = f"--json --allow-long-context --engine {engine.name} --engine-version {engine.version}"
    options += f" --gpu {case.accelerator.name} --context {case.context} --utilization {question.utilization}"
    options += f" --kv {case.settings.kv} --weights {case.settings.weights}"
    options += f" --tp {layout.tp} --pp {layout.pp} --dp {layout.dp}"
    if case.settings.memory_bytes is not None:
        options += f" --memory {case.settings.memory_bytes}B"
    if row.max_num_batched_tokens:
        options += f" --max-batched-tokens {row.max_num_batched_tokens}"
    if row.max_num_seqs:
        options += f" --max-seqs {row.max_num_seqs}"
    own = [word for name, value in case.settings.arguments for word in ("--engine-arg", f"{name}={value}")]
    argv = [os.path.join(bin_folder, "headcount"), "fit", question.path, *options.split(), *own]
    found, said, seconds = start(argv, environment)
    token_bytes = headcount_token_bytes(question)
    if found is None:
        return Answer(token_bytes=token_bytes, refusal=said, seconds=seconds)
    cache = found["per_gpu"]["kv_budget_bytes"]
    tokens = engine.printed_tokens(case, cache) if cache > 0 else 0
    return Answer(cache, tokens, token_bytes, seconds=seconds)


def ask_kvfit(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    case, kv = question.asked.case, kv_name(question)
    if case.layout.pp > 1:
        return Answer(refusal="it has no pipeline stages")
    options = f"--json --allow-context-overflow --context {case.context} --kv-dtype {KVFIT_KV.get(kv, kv)}"
    options += f" --hardware custom:{question.usable_bytes / question.utilization / GIB}"
    options += f" --gpus {case.layout.gpus} --tp {case.layout.tp} --utilization {question.utilization}"
    argv = [os.path.join(bin_folder, "kvfit"), question.repository, *options.split()]
    found, said, seconds = start(argv, environment)
    if found is None:
        return Answer(refusal=said, seconds=seconds)
    rank = found["layouts"][0]
    sequence = rank["kv_per_sequence_per_rank_gib"]
    if sequence is None:
        return Answer(refusal=rank["reason"][:160], seconds=seconds)
    cache = rank["budget_per_rank_gib"] - rank["weights_per_rank_gib"] - rank["fixed_cache_per_rank_gib"]
    tokens = max(0.0, cache / sequence * case.context)
    return Answer(cache * GIB, tokens, sequence * GIB / case.context, seconds=seconds)


def ask_hf_mem(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    """It prices one model and one conversation; card, utilization and split are the user's own division."""
    case, kv = question.asked.case, kv_name(question)
    options = f"--experimental --json-output --max-model-len {case.context}"
    options += f" --kv-cache-dtype {HF_MEM_KV.get(kv, kv)} --model-id {question.repository}"
    found, said, seconds = start([os.path.join(bin_folder, "hf-mem"), *options.split()], environment)
    if found is None:
        return Answer(refusal=said, seconds=seconds)
    ranks = case.layout.tp * case.layout.pp
    cache = question.usable_bytes - found["memory"] / ranks
    if found.get("kv_cache") is None:
        return Answer(cache, seconds=seconds)
    token_bytes = found["kv_cache"] / case.context / ranks
    return Answer(cache, max(0.0, cache / token_bytes), token_bytes, seconds=seconds)


def ask_stock(question: Question, _: str, __: dict[str, str]) -> Answer:
    text, ranks = text_of(question.config), question.asked.case.layout.tp
    heads, layers = text.get("num_attention_heads"), text.get("num_hidden_layers")
    head_dim = text.get("head_dim") or (heads and text.get("hidden_size") and text["hidden_size"] // heads)
    if not (heads and layers and head_dim):
        return Answer(refusal="the config does not give L, K and H under their usual names")
    token_bytes = 2 * layers * (text.get("num_key_value_heads") or heads) * head_dim * 2 / ranks
    cache = question.usable_bytes - question.plain_bytes / ranks
    return Answer(cache, max(0.0, cache / token_bytes), token_bytes)


def text_of(config: dict[str, Any]) -> Any:
    return config.get("text_config") or config


def kv_name(question: Question) -> str:
    case = question.asked.case
    return question.asked.engine.kv_format_name(case.model, case.settings)


def read_questions(
    rows: Iterable[Observation], find: Callable[[str], dict[str, Any] | None], folder: str
) -> tuple[list[Question], list[str]]:
    """The vLLM rows that can be put to every tool, and those that headcount's own reader cannot put at all."""
    questions, unread = [], []
    for row in rows:
        if row.engine != "vllm" or row.circular or row.config is None:
            continue
        try:
            published = find(row.config)
            if published is None:
                continue
            model, _ = read_shape(published, row.model or row.config)
            asked = ask(row, model)
        except HeadcountError as error:
            if "end_to_end" in row.check:
                unread.append(f"{row.id}: {error}")
            continue
        case = asked.case
        config = spell_out(published, model)
        path = os.path.join(folder, f"{row.id}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        packed = case.settings.replace(weights="fp32") if model.dtype == "fp32" else case.settings
        sizes = [asked.engine.stored_bytes(model, s) for s in (packed, case.settings.replace(weights="bf16"))]
        share = row.gpu_memory_utilization or asked.engine.default_utilization(case) or 1.0
        usable = asked.engine.usable_bytes(case.accelerator, case.settings)
        questions.append(Question(row, asked, published, config, path, usable, share, *sizes))
    return questions, unread


def spell_out(config: dict[str, Any], model: ModelSpec) -> dict[str, Any]:
    """The config as current transformers writes it: nothing left out, each layer's kind by name (kvfit asks for it)."""
    filled = {key: value for key, value in complete(config).items() if key != "_source"}
    text = text_of(filled)
    found = [{type(mixer) for mixer in layer.mixers} for layer in model.layers]
    if "layer_types" not in text and {SlidingWindow} in found and {FullAttention} in found:
        kinds = ("full_attention", "sliding_attention")
        text = {**text, "layer_types": [kinds[SlidingWindow in kind] for kind in found]}
    return {**filled, "text_config": text} if filled.get("text_config") else text


def group_of(question: Question) -> str:
    """``stated``, ``dated`` (the release was not said: the newest of the log's day) or "" (no end-to-end row)."""
    row = question.row
    if row.engine_version is None:
        # Judged as if its release had been said: what else it lacks still leaves it out.
        row = row.replace(engine_version=question.asked.engine.version)
    found = [o for o in judge(row, question.published) if o.comparison and o.comparison.check == "end_to_end"]
    # A refusal of headcount's stays in: it is counted as one.
    if not any(o.counted or (o.comparison and o.comparison.predicted is None) for o in found):
        return ""
    return "dated" if question.row.engine_version is None else "stated"


def relative(predicted: float | None, reported: float | None) -> float | None:
    return None if predicted is None or not reported else predicted / reported - 1


def end_to_end_error(question: Question, answer: Answer) -> float | None:
    row = question.row
    if row.kv_cache_memory_gib:
        return relative(answer.cache_bytes, row.kv_cache_memory_gib * GIB)
    return relative(answer.tokens, row.kv_cache_tokens or (row.num_gpu_blocks or 0) * (row.block_size or 16))


def tokens_error(question: Question, answer: Answer) -> float | None:
    return relative(answer.tokens, question.row.kv_cache_tokens)


def token_bytes_error(question: Question, answer: Answer) -> float | None:
    memory, tokens = question.row.kv_cache_memory_gib, question.row.kv_cache_tokens
    return relative(answer.token_bytes, memory * GIB / tokens) if memory and tokens else None


def headcount_token_bytes(question: Question) -> float | None:
    """Printed memory / the tokens that the pool rule draws from it."""
    for outcome in judge(question.row, question.published):
        found = outcome.comparison
        if found and (found.check, found.quantity) == ("tokens_from_kv_memory", "tokens") and found.predicted:
            return (question.row.kv_cache_memory_gib or 0.0) * GIB / found.predicted
    return None


def closer(found: float | None, than: float | None) -> bool:
    """Closer by more than the two printed decimals of a GiB decide; any answer is closer than a refusal."""
    return found is not None and (than is None or abs(found) + TIE < abs(than))


def print_errors(title: str, heard: Sequence[Heard], error: Error) -> dict[str, list[float | None]]:
    """One table: every tool over the same rows, the last columns beside headcount row by row."""
    errors = {tool: [error(h.question, h.answers[tool]) for h in heard] for tool in TOOLS}
    ours = errors["headcount"]
    print(f"\n{title}: {len(ours)} rows\n")
    print("| tool | answered | refused | median | 90th | worst | off by 2x | headcount there | closest |")
    print("|---|---|---|---|---|---|---|---|---|")
    for tool, found in errors.items():
        given = [(e, o) for e, o in zip(found, ours, strict=True) if e is not None]
        sizes = sorted(abs(e) for e, _ in given) or [0.0]
        beside = sorted(abs(o) for _, o in given if o is not None) or [0.0]
        ninetieth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
        shown = (sizes[len(sizes) // 2], ninetieth, sizes[-1])
        twice = sum(e >= 1.0 or e <= -0.5 for e, _ in given)
        closest = sum(
            e is not None and not any(closer(row[i], e) for row in errors.values())
            for i, e in enumerate(found)
        )
        print(f"| {tool} | {len(given)} | {len(ours) - len(given)} | ", end="")
        print(" | ".join(f"{100 * size:,.2f} %" for size in shown), end="")
        print(f" | {twice} | {100 * beside[len(beside) // 2]:,.2f} % | {closest} |")
    return errors


def print_beaten(heard: Sequence[Heard], errors: dict[str, list[float | None]]) -> None:
    """Every row on which a peer or the formula came closer than headcount."""
    ours = errors["headcount"]
    print()
    for i, item in enumerate(heard):
        nearer = [f"{t} {words(found[i])}" for t, found in errors.items() if closer(found[i], ours[i])]
        if nearer:
            print(f"- closer than headcount ({words(ours[i])}): {', '.join(nearer)}; {item.question.row.id}")


def words(error: float | None) -> str:
    return "refused" if error is None else f"{100 * error:+.2f} %"


def ask_all(
    questions: Sequence[Question], rounds: int, folders: Sequence[str], environment: dict[str, str]
) -> list[Heard]:
    """Every tool on every question, in turn, so that a slow moment falls on all; medians of the seconds."""
    tools = tuple(zip(TOOLS, (ask_headcount, ask_kvfit, ask_hf_mem, ask_stock), folders, strict=True))
    result = []
    for question in questions:
        said: dict[str, list[Answer]] = {tool: [] for tool in TOOLS}
        for _ in range(rounds):
            for name, tool, folder in tools:
                said[name].append(tool(question, folder, environment))
        middle = {name: median(answer.seconds for answer in found) for name, found in said.items()}
        result.append(
            Heard(question, {name: found[0]._replace(seconds=middle[name]) for name, found in said.items()})
        )
    return result


def print_seconds(heard: Sequence[Heard]) -> None:
    together = [h.answers for h in heard if not any(h.answers[tool].refusal for tool in TOOLS[:3])]
    print(f"\nSeconds per answer, one process each, {len(together)} rows that all three answered\n")
    print("| tool | median | least to most | ratio to headcount |\n|---|---|---|---|")
    for tool in TOOLS[:3] if together else ():
        times = [answers[tool].seconds for answers in together]
        ratio = median(times) / median(answers["headcount"].seconds for answers in together)
        print(f"| {tool} | {median(times):.3f} | {min(times):.3f} to {max(times):.3f} | {ratio:.2f} |")


def print_refusals(heard: Sequence[Heard]) -> None:
    for tool in TOOLS:
        reasons: dict[str, list[str]] = {}
        for item in heard:
            if item.answers[tool].refusal:
                reasons.setdefault(item.answers[tool].refusal, []).append(item.question.row.id.split("-")[0])
        for reason, ids in reasons.items():
            print(f"- {tool} refused {', '.join(ids)}: {reason}")


def report_end_to_end(heard: Sequence[Heard], title: str) -> None:
    """The rows of one group: all, then by whether headcount's terms were measured on their source."""
    own = [item for item in heard if item.own_source]
    others = [item for item in heard if not item.own_source]
    models = len({(h.question.row.config, h.question.asked.case.layout.tp) for h in heard})
    print(f"\n{title}: {len(heard)} rows, {models} models and splits, {len(own)} from {MEASURED_ON}")
    errors = print_errors("Cache per GPU", heard, end_to_end_error)
    if own and others:
        print_errors("Of these, from other sources", others, end_to_end_error)
    printed = [item for item in heard if item.question.row.kv_cache_tokens]
    if printed:
        print_errors("Tokens from the same answers, where the log prints them", printed, tokens_error)
    print_beaten(heard, errors)
    print_refusals(heard)


def says_bytes(question: Question) -> bool:
    """Whether the row says all that a token's bytes depend on; headcount's own result plays no part."""
    row = question.row
    said = (row.kv_cache_memory_gib, row.kv_cache_tokens, row.kv_cache_dtype, row.max_model_len)
    inferred = any(outcome.reason.startswith("circular") for outcome in judge(row, question.published))
    return None not in said and not inferred


def print_route(heard: Sequence[Heard]) -> None:
    """The command line and the shipped accuracy table must predict the same."""
    gaps = []
    for question, answers in heard:
        cache = answers["headcount"].cache_bytes
        if cache is not None:
            budget = question.asked.engine.replica(question.asked.case).budget.kv_budget
            gaps.append(abs(cache - budget))
    print(f"headcount fit beside headcount accuracy: at most {max(gaps, default=0) / GIB:.4f} GiB apart")


def version_of(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print({package!r}, m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers-python", help="interpreter that has kvfit and hf-mem (else: from PATH)")
    parser.add_argument("--rounds", type=int, default=3, help="times every question is put")
    parser.add_argument("--logs", help="rows of another table, as headcount accuracy --logs")
    parser.add_argument("--configs", help="folder of their configs")
    args = parser.parse_args()
    beside = shutil.which("kvfit")
    peers = args.peers_python or (beside and os.path.join(os.path.dirname(beside), "python"))
    if not peers or not shutil.which("openssl"):
        parser.error("needs openssl, and the peers: --peers-python, or kvfit and hf-mem on PATH")
    theirs = os.path.dirname(os.path.abspath(peers))
    rows, configs = public_table() if args.logs is None else (list(read_table(args.logs)), {})

    def find(name: str) -> dict[str, Any] | None:
        return configs.get(name) if args.logs is None else read_config(args.configs or ".", name)

    with tempfile.TemporaryDirectory() as folder:
        questions, unread = read_questions(rows, find, folder)
        groups = {q.row.id: group_of(q) for q in questions}
        questions = [q for q in questions if groups[q.row.id] or says_bytes(q)]
        folders = (sysconfig.get_path("scripts"), theirs, theirs, "")
        heard = ask_all(questions, args.rounds, folders, open_hub(folder, questions))
    versions = [version_of(sys.executable, "headcount"), version_of(peers, "kvfit")]
    print(", ".join([*versions, version_of(peers, "hf-mem"), f"{args.rounds} rounds"]))
    print_route(heard)
    for reason in unread:
        print(f"- left out, headcount reads no question in it: {reason}")
    for group, title in (
        ("stated", "Release stated"),
        ("dated", "Release not said, the newest of the log's day taken"),
    ):
        report_end_to_end([h for h in heard if groups[h.question.row.id] == group], title)
    told = [item for item in heard if says_bytes(item.question)]
    for shape in ("every layer keeps all tokens", "sliding or hybrid"):
        chosen = [item for item in told if item.question.shape == shape]
        print_beaten(chosen, print_errors(f"Bytes per token, {shape}", chosen, token_bytes_error))
    print_seconds(heard)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
