"""Servers for the tests: raw sockets, so that they can answer anything, honest or not."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

DATA = Path(__file__).parent / "data" / "servers"
Reply = bytes | Iterable[bytes] | None
Handler = Callable[[str, str, bytes], Reply]


def answer(
    body: bytes | str | dict[str, Any], kind: str = "application/json", status: str = "200 OK"
) -> bytes:
    """A whole HTTP answer."""
    if isinstance(body, dict):
        body = json.dumps(body)
    raw = body if isinstance(body, bytes) else body.encode()
    return (
        f"HTTP/1.1 {status}\r\nServer: uvicorn\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )


def chunk(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


NOT_FOUND = answer({"detail": "Not Found"}, status="404 Not Found")
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


class Fake:
    """Listens on 127.0.0.1; ``handler(method, path, body)`` gives the raw answer: bytes, pieces, or None for a reset."""

    def __init__(self, handler: Handler, *, tls: bool = False) -> None:
        self.handler = handler
        self.requests: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._context: ssl.SSLContext | None = None
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(DATA / "self-signed.pem")
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        # Wakes accept(): closing alone does not.
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self.stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), contextlib.closing(self._wrapped(sock)) as wire:
            wire.settimeout(5)
            with wire.makefile("rb") as file:
                method, path, _ = file.readline().decode().split(" ", 2)
                head = ""
                while (line := file.readline()) not in (b"\r\n", b""):
                    head += line.decode()
                length = next(
                    (
                        int(row.split(":")[1])
                        for row in head.splitlines()
                        if row.lower().startswith("content-length")
                    ),
                    0,
                )
                body = file.read(length)
            self.requests.append((method, path))
            self.heads.append(head)
            reply = self.handler(method, path, body)
            if reply is None:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            self._send(wire, [reply] if isinstance(reply, bytes) else reply)

    def _send(self, wire: socket.socket, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                if self.stop.is_set():
                    return
                wire.sendall(piece)
        finally:
            close = getattr(pieces, "close", None)
            if close:
                close()

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        if self._context is None:
            return sock
        try:
            return self._context.wrap_socket(sock, server_side=True)
        except BaseException:
            sock.close()
            raise


def routes(table: dict[str, bytes]) -> Handler:
    """Answer by path; 404 for the rest."""
    return lambda method, path, body: table.get(path, NOT_FOUND)


VLLM_MODELS = answer((DATA / "vllm-0.32.0-models.json").read_bytes())
VLLM_METRICS = answer(
    (DATA / "vllm-0.32.0-metrics.txt").read_bytes(), "text/plain; version=1.0.0; charset=utf-8"
)
VLLM = {
    "/v1/models": VLLM_MODELS,
    "/version": answer({"version": "0.32.0"}),
    "/metrics": VLLM_METRICS,
}
# What python -m llama_cpp.server 0.3.36 answered (the description of its API cut to its head).
LLAMA_CPP_PYTHON = {
    "/v1/models": answer(
        {
            "object": "list",
            "data": [{"id": "/models/tiny.gguf", "object": "model", "owned_by": "me", "permissions": []}],
        }
    ),
    "/openapi.json": answer(
        {
            "openapi": "3.1.0",
            "info": {"title": "\N{LLAMA} llama.cpp Python API", "version": "0.3.36"},
            "paths": {},
        }
    ),
}
# By the field names that llama.cpp's tools/server/README.md gives; no recorded answer.
LLAMA_SERVER = {
    "/v1/models": answer(
        {
            "object": "list",
            "data": [{"id": "/models/a.gguf", "object": "model", "owned_by": "llamacpp", "meta": {}}],
        }
    ),
    "/props": answer(
        {
            "default_generation_settings": {"id": 0, "n_ctx": 4096, "is_processing": False, "params": {}},
            "total_slots": 4,
            "model_path": "/models/a.gguf",
            "build_info": "b6000-abcdef01",
        }
    ),
    "/metrics": answer(
        "# HELP llamacpp:requests_processing Number of requests processing.\n"
        "# TYPE llamacpp:requests_processing gauge\n"
        "llamacpp:requests_processing 3\nllamacpp:requests_deferred 2\n",
        "text/plain; version=0.0.4",
    ),
}
# By the field names of the package sglang 0.5.23; no recorded answer.
SGLANG_INFO = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "api_key": "must-not-be-kept",
    "mem_fraction_static": 0.83,
    "kv_cache_dtype": "auto",
    "dtype": "auto",
    "quantization": None,
    "tp_size": 2,
    "pp_size": 1,
    "dp_size": 2,
    "page_size": 1,
    "context_length": None,
    "chunked_prefill_size": 8192,
    "max_total_tokens": None,
    "max_running_requests": None,
    "swa_full_tokens_ratio": 0.8,
    "disable_radix_cache": True,
    "max_total_num_tokens": 431_234,
    "max_req_input_len": 131_066,
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 2048,
            "memory_usage": {
                "weight": 7.6,
                "kvcache": 26.321,
                "token_capacity": 431_234,
                "graph": {"decode": 0.3},
            },
        }
    ],
    "version": "0.5.23",
}
SGLANG = {
    "/v1/models": answer(
        {
            "object": "list",
            "data": [{"id": "llama", "owned_by": "sglang", "root": "llama", "max_model_len": 131_072}],
        }
    ),
    "/server_info": answer(SGLANG_INFO),
    "/metrics": answer(
        "".join(
            f'sglang:{name}{{dp_rank="{rank}",priority="{priority}",tp_rank="{tp}"}} {value}\n'
            for rank in (0, 1)
            for tp in (0, 1)
            for priority in ("", "5")
            for name, value in (
                ("num_running_reqs", 3.0),
                ("num_queue_reqs", rank),
                ("token_usage", 0.25 + rank / 4),
            )
        )
        + 'sglang:num_retracted_requests_total{dp_rank="0"} 7.0\n',
        "text/plain; version=0.0.4",
    ),
}


class Engine:
    """A vLLM-like server of ``slots`` conversations: the next ones wait; one token every ``step`` seconds."""

    def __init__(self, *, slots: int, step: float = 0.005, refuse: str = "", throw_out: int = 0) -> None:
        self.slots = slots
        self.step = step
        self.refuse = refuse
        self.throw_out = throw_out
        self.running = 0
        self.waiting = 0
        self.prompts: list[Any] = []
        self._lock = threading.Condition()

    def handler(self, method: str, path: str, body: bytes) -> Reply:
        if method == "POST" and path == "/v1/completions":
            asked = json.loads(body)
            self.prompts.append(asked["prompt"])
            if self.refuse:
                return answer(
                    {"error": {"message": self.refuse, "type": "BadRequestError"}}, status="400 Bad Request"
                )
            return self._stream(asked)
        if path == "/metrics":
            return self._metrics()
        return VLLM.get(path, NOT_FOUND)

    def _metrics(self) -> bytes:
        out = self.throw_out if self.running == self.slots else 0
        return answer(
            f'vllm:num_requests_running{{engine="0"}} {self.running - out}\n'
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting + out}\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.running / self.slots}\n'
            'vllm:num_preemptions_total{engine="0"} 0.0\n'
            'vllm:cache_config_info{block_size="128",num_gpu_blocks="33"} 1.0\n',
            "text/plain",
        )

    def _stream(self, asked: dict[str, Any]) -> Iterator[bytes]:
        with self._lock:
            self.waiting += 1
            while self.running >= self.slots:
                # A client that has gone is noticed at the next write; an empty piece writes nothing.
                yield b""
                self._lock.wait(0.01)
            self.waiting -= 1
            self.running += 1
        try:
            yield CHUNKED % b"text/event-stream"
            count = asked["max_tokens"]
            for place in range(1, count + 1):
                time.sleep(self.step)
                event = {
                    "choices": [
                        {"index": 0, "text": " t", "finish_reason": "length" if place == count else None}
                    ],
                    "usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": place},
                }
                yield chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
            yield chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        finally:
            with self._lock:
                self.running -= 1
                self._lock.notify_all()
