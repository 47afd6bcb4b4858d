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

Needs openssl (a certificate for the stand-in, trusted by the two peers alone).
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
from headcount.spec.attention import FullAttention, LatentAttention
from headcount.units import GIB
from headcount.verify.accuracy import (
    complete,
    judge,
    public_table,
    read_config,
    read_shape,
    read_table,
)
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
    """

    row: Observation
    asked: Asked
    repository: str
    config: dict[str, Any]
    path: str
    usable_bytes: int
    utilization: float
    parameters: int
    stored_bytes: int

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
    size, layers = question.stored_bytes, (question.config.get("text_config") or question.config)
    kind, scale = ("BF16", 2) if question.asked.case.model.quantization is None else ("U8", 1)
    header = json.dumps({"weights": {"dtype": kind, "shape": [size // scale], "data_offsets": [0, size]}})
    index = {
        f"model.layers.{i}.weight": SHARD
        for i in range(layers.get("num_hidden_layers") or layers.get("num_layers") or 0)
    }
    files: dict[str, bytes] = {
        "config.json": json.dumps(question.config).encode(),
        "model.safetensors.index.json": json.dumps(
            {"metadata": {"total_size": size}, "weight_map": index}
        ).encode(),
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
        return None, (said or [f"exit {done.returncode}, no message"])[-1].strip()[:160], seconds
    return found, "", seconds


def ask_headcount(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    row, case, engine = question.row, question.asked.case, question.asked.engine
    argv = [os.path.join(bin_folder, "headcount"), "fit", question.path, "--json", "--allow-long-context"]
    argv += ["--engine", engine.name, "--engine-version", engine.version, "--gpu", case.accelerator.name]
    argv += ["--context", str(case.context)]
    if case.settings.memory_bytes is not None:
        argv += ["--memory", f"{case.settings.memory_bytes}B"]
    argv += ["--utilization", str(question.utilization), "--kv", case.settings.kv]
    argv += ["--weights", case.settings.weights]
    argv += ["--tp", str(case.layout.tp), "--pp", str(case.layout.pp), "--dp", str(case.layout.dp)]
    if row.max_num_batched_tokens:
        argv += ["--max-batched-tokens", str(row.max_num_batched_tokens)]
    if row.max_num_seqs:
        argv += ["--max-seqs", str(row.max_num_seqs)]
    for name, value in case.settings.arguments:
        argv += ["--engine-arg", f"{name}={value}"]
    found, said, seconds = start(argv, environment)
    if found is None:
        return Answer(refusal=said, seconds=seconds)
    cache = found["per_gpu"]["kv_budget_bytes"]
    return Answer(
        cache_bytes=cache, tokens=engine.printed_tokens(case, cache) if cache > 0 else 0, seconds=seconds
    )


def ask_kvfit(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    case = question.asked.case
    if case.layout.pp > 1:
        return Answer(refusal="it has no pipeline stages")
    argv = [os.path.join(bin_folder, "kvfit"), question.repository, "--json", "--allow-context-overflow"]
    argv += [
        "--hardware",
        f"custom:{question.usable_bytes / question.utilization / GIB}",
        "--gpus",
        str(case.layout.gpus),
    ]
    argv += ["--tp", str(case.layout.tp), "--utilization", str(question.utilization)]
    kv = kv_name(question)
    argv += ["--context", str(case.context), "--kv-dtype", KVFIT_KV.get(kv, kv)]
    found, said, seconds = start(argv, environment)
    if found is None:
        return Answer(refusal=said, seconds=seconds)
    layout = found["layouts"][0]
    sequence = layout["kv_per_sequence_per_rank_gib"]
    if sequence is None:
        return Answer(refusal=layout["reason"][:160], seconds=seconds)
    cache = (
        layout["budget_per_rank_gib"] - layout["weights_per_rank_gib"] - layout["fixed_cache_per_rank_gib"]
    )
    return Answer(
        cache_bytes=cache * GIB,
        tokens=max(0.0, cache / sequence * case.context),
        token_bytes=sequence * GIB / case.context,
        seconds=seconds,
    )


def ask_hf_mem(question: Question, bin_folder: str, environment: dict[str, str]) -> Answer:
    """It prices one model and one conversation; card, utilization and split are the user's own division."""
    case, kv = question.asked.case, kv_name(question)
    argv = [os.path.join(bin_folder, "hf-mem"), "--model-id", question.repository, "--experimental"]
    argv += ["--json-output", "--max-model-len", str(case.context)]
    argv += ["--kv-cache-dtype", HF_MEM_KV.get(kv, kv)]
    found, said, seconds = start(argv, environment)
    if found is None:
        return Answer(refusal=said, seconds=seconds)
    ranks = case.layout.tp * case.layout.pp
    cache = question.usable_bytes - found["memory"] / ranks
    if found.get("kv_cache") is None:
        return Answer(cache_bytes=cache, seconds=seconds)
    token_bytes = found["kv_cache"] / case.context / ranks
    return Answer(cache, max(0.0, cache / token_bytes), token_bytes, seconds=seconds)


def ask_stock(question: Question, _: str, __: dict[str, str]) -> Answer:
    text, ranks = question.config.get("text_config") or question.config, question.asked.case.layout.tp
    heads, layers = text.get("num_attention_heads"), text.get("num_hidden_layers")
    head_dim = text.get("head_dim") or (heads and text.get("hidden_size") and text["hidden_size"] // heads)
    if not (heads and layers and head_dim):
        return Answer(refusal="the config does not give L, K and H under their usual names")
    token_bytes = 2 * layers * (text.get("num_key_value_heads") or heads) * head_dim * 2 / ranks
    cache = question.usable_bytes - question.parameters * 2 / ranks
    return Answer(cache, max(0.0, cache / token_bytes), token_bytes)


def kv_name(question: Question) -> str:
    case = question.asked.case
    return question.asked.engine.kv_format_name(case.model, case.settings)


def read_questions(
    rows: Iterable[Observation], find: Callable[[str], dict[str, Any] | None], folder: str
) -> tuple[list[Question], list[str]]:
    """The vLLM rows that can be put to every tool, and those that headcount's own reader cannot put at all."""
    questions, unread = [], []
    for row in rows:
        config = find(row.config) if row.config else None
        if row.engine != "vllm" or row.circular or config is None:
            continue
        try:
            model, _ = read_shape(config, row.model or row.config or "")
            asked = ask(row, model)
        except HeadcountError as error:
            unread.append(f"{row.id}: {error}")
            continue
        case, name = asked.case, str(row.config)[: -len(".json")]
        filled = spell_out(config)
        path = os.path.join(folder, f"{row.id}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(filled, file)
        settings = case.settings.replace(weights="fp32") if model.dtype == "fp32" else case.settings
        share = row.gpu_memory_utilization or asked.engine.default_utilization(case)
        share = share or 1.0
        usable = asked.engine.usable_bytes(case.accelerator, case.settings)
        questions.append(
            Question(
                row,
                asked,
                name.replace("__", "/", 1) if "__" in name else f"public/{name}",
                filled,
                path,
                usable,
                share,
                model.parameters,
                asked.engine.stored_bytes(model, settings),
            )
        )
    return questions, unread


def spell_out(config: dict[str, Any]) -> dict[str, Any]:
    """The config as current transformers writes it: nothing left out, each layer's kind by name (kvfit asks for it)."""
    filled = {key: value for key, value in complete(config).items() if key != "_source"}
    text = filled.get("text_config") or filled
    every = text.get("sliding_window_pattern")
    if isinstance(every, int) and "layer_types" not in text:
        kinds = [
            "sliding_attention" if (i + 1) % every else "full_attention"
            for i in range(text["num_hidden_layers"])
        ]
        text = {**text, "layer_types": kinds}
    return {**filled, "text_config": text} if filled.get("text_config") else text


def group_of(question: Question) -> str:
    """``stated``, ``dated`` (the release was not said: the newest of the log's day) or "" (no end-to-end row)."""
    row = question.row
    if row.engine_version is None:
        # Judged as if its release had been said: what else it lacks still leaves it out.
        row = row.replace(engine_version=question.asked.engine.version)
    found = [o for o in judge(row, question.config) if o.comparison and o.comparison.check == "end_to_end"]
    # A refusal of headcount's stays in: it is counted as one.
    if not any(o.counted or (o.comparison and o.comparison.predicted is None) for o in found):
        return ""
    return "dated" if question.row.engine_version is None else "stated"


def end_to_end_error(question: Question, answer: Answer) -> float | None:
    row = question.row
    if row.kv_cache_memory_gib:
        cache = answer.cache_bytes
        return None if cache is None else cache / (row.kv_cache_memory_gib * GIB) - 1
    reported = row.kv_cache_tokens or (row.num_gpu_blocks or 0) * (row.block_size or 16)
    return None if answer.tokens is None or not reported else answer.tokens / reported - 1


def tokens_error(question: Question, answer: Answer) -> float | None:
    if answer.tokens is None or not question.row.kv_cache_tokens:
        return None
    return answer.tokens / question.row.kv_cache_tokens - 1


def token_bytes_error(question: Question, answer: Answer) -> float | None:
    row = question.row
    if answer.token_bytes is None or not row.kv_cache_memory_gib or not row.kv_cache_tokens:
        return None
    return answer.token_bytes / (row.kv_cache_memory_gib * GIB / row.kv_cache_tokens) - 1


def headcount_token_bytes(question: Question) -> float | None:
    """Printed memory / the tokens that the pool rule draws from it."""
    for outcome in judge(question.row, question.config):
        found = outcome.comparison
        if found and (found.check, found.quantity) == ("tokens_from_kv_memory", "tokens") and found.predicted:
            return (question.row.kv_cache_memory_gib or 0.0) * GIB / found.predicted
    return None


def off_by_two(error: float) -> bool:
    return error >= 1.0 or error <= -0.5


def closer(found: float | None, than: float | None) -> bool:
    """Closer by more than the two printed decimals of a GiB decide; any answer is closer than a refusal."""
    return found is not None and (than is None or abs(found) + TIE < abs(than))


def print_errors(title: str, errors: dict[str, list[float | None]]) -> None:
    """One table: every tool over the same rows; the last columns set the peers beside headcount row by row."""
    ours = errors["headcount"]
    print(f"\n{title}: {len(ours)} rows\n")
    print(
        "| tool | answered | refused | median | 90th | worst | off by 2x | headcount on those | closest of all |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for tool in TOOLS:
        given = [(e, o) for e, o in zip(errors[tool], ours, strict=True) if e is not None]
        sizes = sorted(abs(e) for e, _ in given)
        beside = sorted(abs(o) for _, o in given if o is not None)
        cells = [str(len(given)), str(len(ours) - len(given))]
        if sizes:
            ninetieth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
            cells += [f"{100 * x:,.2f} %" for x in (sizes[len(sizes) // 2], ninetieth, sizes[-1])]
            cells.append(str(sum(off_by_two(e) for e, _ in given)))
            cells.append(f"{100 * beside[len(beside) // 2]:,.2f} %" if beside else "")
        else:
            cells += [""] * 5
        best = sum(
            e is not None and not any(closer(row[i], e) for row in errors.values())
            for i, e in enumerate(errors[tool])
        )
        print(f"| {tool} | {' | '.join(cells)} | {best} |")


def print_beaten(questions: Sequence[Question], errors: dict[str, list[float | None]], figure: str) -> None:
    """Every row on which a peer came closer than headcount."""
    for i, question in enumerate(questions):
        ours = errors["headcount"][i]
        nearer = [
            f"{tool} {100 * found:+.2f} %"
            for tool in TOOLS[1:]
            if (found := errors[tool][i]) is not None and closer(found, ours)
        ]
        if nearer:
            own = "refused" if ours is None else f"{100 * ours:+.2f} %"
            print(f"- {figure}, {question.row.id}: headcount {own}; {', '.join(nearer)}")


def ask_all(
    questions: Sequence[Question], rounds: int, folders: dict[str, str], environment: dict[str, str]
) -> dict[str, list[Answer]]:
    """Every tool on every question, in turn, so that a slow moment falls on all; medians of the seconds."""
    tools = (ask_headcount, ask_kvfit, ask_hf_mem, ask_stock)
    answers: dict[str, list[Answer]] = {tool: [] for tool in TOOLS}
    for question in questions:
        heard: dict[str, list[Answer]] = {tool: [] for tool in TOOLS}
        for _ in range(rounds):
            for name, tool in zip(TOOLS, tools, strict=True):
                heard[name].append(tool(question, folders[name], environment))
        for name, found in heard.items():
            answers[name].append(found[0]._replace(seconds=median(a.seconds for a in found)))
    return answers


def print_seconds(answers: dict[str, list[Answer]]) -> None:
    print("\nSeconds per answer, one process each, over the rows that all three answered\n")
    print("| tool | median | least to most | ratio to headcount |\n|---|---|---|---|")
    together = [
        i for i in range(len(answers["headcount"])) if not any(answers[tool][i].refusal for tool in TOOLS[:3])
    ]
    if not together:
        return
    base = median(answers["headcount"][i].seconds for i in together)
    for tool in TOOLS[:3]:
        times = [answers[tool][i].seconds for i in together]
        print(f"| {tool} | {median(times):.3f} | {min(times):.3f} to {max(times):.3f} | ", end="")
        print(f"{median(times) / base:.2f} |")


def print_refusals(questions: Sequence[Question], answers: dict[str, list[Answer]]) -> None:
    for tool in TOOLS:
        reasons: dict[str, list[str]] = {}
        for question, answer in zip(questions, answers[tool], strict=True):
            if answer.refusal:
                reasons.setdefault(answer.refusal, []).append(question.row.id.split("-")[0])
        for reason, ids in reasons.items():
            print(f"- {tool} refused {', '.join(ids)}: {reason}")


def report_end_to_end(questions: list[Question], answers: dict[str, list[Answer]], title: str) -> None:
    """The rows of one group: all, then by whether headcount's terms were measured on their source."""
    names = (f"from the start-up logs of {MEASURED_ON}", "from other sources")
    parts = [
        [i for i, q in enumerate(questions) if (MEASURED_ON in q.row.source_url) is own]
        for own in (True, False)
    ]
    models = len({(q.repository, q.asked.case.layout.tp) for q in questions})
    print(f"\n{title}: {len(questions)} rows, {models} models and splits")
    for name, chosen in (("all", list(range(len(questions)))), *zip(names, parts, strict=True)):
        if chosen and (name == "all" or len(chosen) < len(questions)):
            errors = {
                tool: [end_to_end_error(questions[i], answers[tool][i]) for i in chosen] for tool in TOOLS
            }
            print_errors(f"Cache per GPU, {name}", errors)
    everything = {
        tool: [end_to_end_error(q, a) for q, a in zip(questions, answers[tool], strict=True)]
        for tool in TOOLS
    }
    printed = [i for i, q in enumerate(questions) if q.row.kv_cache_tokens]
    if printed:
        errors = {tool: [tokens_error(questions[i], answers[tool][i]) for i in printed] for tool in TOOLS}
        print_errors("Tokens, end to end, where the log prints them", errors)
    print("\nA peer or the formula came closer than headcount, and what was refused:\n")
    print_beaten(questions, everything, "cache per GPU")
    print_refusals(questions, answers)


def report_bytes(questions: list[Question], answers: dict[str, list[Answer]]) -> None:
    """Bytes per token, apart for models whose layers all keep every token and for the others."""
    for shape in ("every layer keeps all tokens", "sliding or hybrid"):
        chosen = [i for i, question in enumerate(questions) if question.shape == shape]
        picked = [questions[i] for i in chosen]
        errors = {tool: [token_bytes_error(questions[i], answers[tool][i]) for i in chosen] for tool in TOOLS}
        errors["headcount"] = [
            token_bytes_error(q, Answer(token_bytes=headcount_token_bytes(q))) for q in picked
        ]
        if chosen:
            print_errors(f"Bytes per token, {shape}", errors)
            print()
            print_beaten(picked, errors, "bytes per token")


def says_bytes(question: Question) -> bool:
    """Whether the row says all that a token's bytes depend on; headcount's own result plays no part."""
    row = question.row
    said = (row.kv_cache_memory_gib, row.kv_cache_tokens, row.kv_cache_dtype, row.max_model_len)
    inferred = any(outcome.reason.startswith("circular") for outcome in judge(row, question.config))
    return None not in said and not inferred


def check_accuracy_route(questions: list[Question], answers: list[Answer]) -> None:
    """The command line and the shipped accuracy table must predict the same."""
    gaps = []
    for question, answer in zip(questions, answers, strict=True):
        try:
            budget = question.asked.engine.replica(question.asked.case).budget.kv_budget
        except HeadcountError:
            continue
        if answer.cache_bytes is not None:
            gaps.append(abs(answer.cache_bytes - budget))
    if gaps:
        print(
            f"headcount fit beside headcount accuracy: at most {max(gaps) / GIB:.4f} GiB apart, {len(gaps)} rows"
        )


def version_of(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--peers-python", help="interpreter of the environment with kvfit and hf-mem (else: PATH)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times every question is put")
    parser.add_argument("--logs", help="rows of another table, as headcount accuracy --logs")
    parser.add_argument("--configs", help="folder of their configs")
    args = parser.parse_args()
    beside = shutil.which("kvfit")
    peers = args.peers_python or (beside and os.path.join(os.path.dirname(beside), "python"))
    if not peers or not shutil.which("openssl"):
        parser.error("needs openssl, and the peers: --peers-python, or kvfit and hf-mem on PATH")
    own, theirs = sysconfig.get_path("scripts"), os.path.dirname(os.path.abspath(peers))
    folders = {"headcount": own, "kvfit": theirs, "hf-mem": theirs, "stock formula": ""}
    rows, configs = public_table() if args.logs is None else (list(read_table(args.logs)), {})

    def find(name: str) -> dict[str, Any] | None:
        return configs.get(name) if args.logs is None else read_config(args.configs or ".", name)

    with tempfile.TemporaryDirectory() as folder:
        questions, unread = read_questions(rows, find, folder)
        groups = [group_of(question) for question in questions]
        wanted = [i for i, q in enumerate(questions) if groups[i] or says_bytes(q)]
        questions, groups = [questions[i] for i in wanted], [groups[i] for i in wanted]
        answers = ask_all(questions, args.rounds, folders, open_hub(folder, questions))
    print(
        f"headcount {version_of(sys.executable, 'headcount')}, kvfit {version_of(peers, 'kvfit')}, ", end=""
    )
    print(f"hf-mem {version_of(peers, 'hf-mem')}; {args.rounds} rounds")
    check_accuracy_route(questions, answers["headcount"])
    for reason in unread:
        print(f"- left out, headcount reads no question in it: {reason}")

    def part(chosen: list[int]) -> tuple[list[Question], dict[str, list[Answer]]]:
        return [questions[i] for i in chosen], {t: [answers[t][i] for i in chosen] for t in TOOLS}

    for group, title in (
        ("stated", "Release stated"),
        ("dated", "Release not said: the newest of the log's day"),
    ):
        report_end_to_end(*part([i for i, found in enumerate(groups) if found == group]), title)
    report_bytes(*part([i for i, q in enumerate(questions) if says_bytes(q)]))
    print_seconds(answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
