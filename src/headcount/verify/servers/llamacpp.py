"""llama.cpp behind HTTP: its own llama-server, and the server of llama-cpp-python.

llama-server    ``/props`` has the context of one slot, the slots and the build; ``/metrics`` exists with ``--metrics``
                (cache usage only in older builds); ``/slots`` tells which slots compute.
                Shapes: llama.cpp's tools/server/README.md.
llama-cpp-python  one context, one request at a time. ``/openapi.json`` has the release; the context's length is not
                said anywhere. Seen on 0.3.36: by default a request that arrives while another is served ends that
                one's reply, with ``[DONE]`` and no reason if it had begun, else by breaking the answer off; with
                ``--interrupt_requests false`` it waits. A streaming request longer than its context is answered
                with 200 and an empty stream.
"""

from __future__ import annotations

import re
import time

from headcount.verify.case_of import SLOTS_MAY_SHARE
from headcount.verify.observation import Observation
from headcount.verify.servers.http import ServerError, read_json, whole_number
from headcount.verify.servers.metrics import fetch_metrics, fullest, total
from headcount.verify.servers.server import LiveServer, Usage, count_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.verify.servers.http import Client

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_FRACTION = "llamacpp:kv_cache_usage_ratio"


class LlamaServer(LiveServer):
    """llama-server; see the module."""

    @property
    def longest(self) -> int | None:
        """The context of one slot."""
        whole = self.observation.max_model_len
        return whole and whole // (self.slots or 1)

    def usage(self) -> Usage:
        """From the metrics where they are on, else the slots that compute; None where both are off."""
        samples = fetch_metrics(self.client, (_RUNNING, _WAITING, _FRACTION))
        if samples is None:
            slots = self.get_json("/slots")
            if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
                return Usage()
            return Usage(running=sum(slot.get("is_processing") is True for slot in slots))
        return Usage(
            running=total(samples, _RUNNING),
            waiting=total(samples, _WAITING),
            fraction=fullest(samples, (_FRACTION,), self.client.address.words()),
        )

    def request(self, prompt: list[int] | str, reply_tokens: int) -> dict[str, Any]:
        """``cache_prompt`` off: a slot starts anew, whatever it held before."""
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": reply_tokens,
            "n_predict": reply_tokens,
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0,
            "stream": True,
        }


class LlamaCppPython(LiveServer):
    """llama-cpp-python's server; see the module."""

    def usage(self) -> Usage:
        """It says nothing of what it holds."""
        return Usage()

    def request(self, prompt: list[int] | str, reply_tokens: int) -> dict[str, Any]:
        """It takes text, and has no way to keep a reply from ending early."""
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": reply_tokens,
            "temperature": 0,
            "stream": True,
        }

    def prompt(self, number: int, tokens: int, *, run: int) -> tuple[list[int] | str, int]:
        """The longest text of repeated words, after its own number, of at most ``tokens`` tokens by the server's count.

        Raises ServerError when even one word is longer.
        """
        least, most, best = 1, max(1, tokens), ("", 0)
        while least <= most:
            words = (least + most) // 2
            text = f"{number} {run}" + " a" * words
            count = self._count(text)
            if count <= tokens:
                best, least = (text, count), words + 1
            else:
                most = words - 1
        if not best[1]:
            raise ServerError(f"{self.words}: no prompt of {tokens} tokens can be made")
        return best

    def _count(self, text: str) -> int:
        path = "/extras/tokenize/count"
        answer = self.client.post(path, {"input": text})
        where = self.client.address.words() + path
        if answer.status != 200:
            raise ServerError(f"{where} answers {answer.status}")
        value = read_json(answer, where=where)
        return whole_number(value.get("count") if isinstance(value, dict) else None, where=f"{where}: count")


def attach_llama_server(client: Client, card: dict[str, Any]) -> LlamaServer:
    """Read what a llama-server says. Raises ServerError where it says something impossible."""
    server = LlamaServer(
        client, words="llama-server", model=str(card["id"]), observation=Observation(engine="llama.cpp")
    )
    where = client.address.words()
    props = server.get_json("/props")
    if not isinstance(props, dict):
        raise ServerError(f"{where}: llama-server by its models, but it has no /props")
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    version = text_of(props.get("build_info"))
    # b6500-abcdef1: the build and its commit.
    numbered = re.match(r"b\d{1,6}(?=-)", version or "")
    length = count_of(context, where=f"{where}/props: n_ctx")
    server.slots = count_of(props.get("total_slots"), where=f"{where}/props: total_slots")
    server.words = f"llama-server {version}" if version else "llama-server of an unstated build"
    server.observation = Observation(
        engine="llama.cpp",
        id=where,
        source_url=where,
        date=time.strftime("%Y-%m-%d"),
        engine_version=numbered[0] if numbered else version,
        model=text_of(props.get("model_path")) or server.model,
        # The context of one slot is printed, and the engine's own is that of all.
        max_model_len=length and length * (server.slots or 1),
        max_num_seqs=server.slots,
        notes=SLOTS_MAY_SHARE,
    )
    return server


def attach_llama_cpp_python(client: Client, card: dict[str, Any]) -> LlamaCppPython | None:
    """Read what llama-cpp-python says; None when ``/openapi.json`` is not its own."""
    server = LlamaCppPython(
        client,
        words="llama-cpp-python",
        model=str(card["id"]),
        observation=Observation(engine="llama.cpp"),
        slots=1,
    )
    api = server.get_json("/openapi.json")
    about = api.get("info") if isinstance(api, dict) else None
    if not isinstance(about, dict) or "llama.cpp Python API" not in str(about.get("title")):
        return None
    version = text_of(about.get("version"))
    where = client.address.words()
    server.words = f"llama-cpp-python {version}" if version else "llama-cpp-python of an unstated version"
    server.observation = Observation(
        engine="llama.cpp",
        id=where,
        source_url=where,
        date=time.strftime("%Y-%m-%d"),
        engine_version=f"llama-cpp-python {version}" if version else None,
        model=server.model,
        max_num_seqs=1,
        notes="one request at a time; the length of its context is not said",
    )
    return server
