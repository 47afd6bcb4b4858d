"""Find out which server answers at an address, by what it says of itself, and refuse what is not known."""

from __future__ import annotations

from headcount.verify.servers.http import Client, ServerError, read_address, read_json
from headcount.verify.servers.llamacpp import attach_llama_cpp_python, attach_llama_server
from headcount.verify.servers.server import text_of
from headcount.verify.servers.sglang import attach_sglang
from headcount.verify.servers.vllm import attach_vllm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.verify.servers.http import Answer, Patience
    from headcount.verify.servers.server import LiveServer

KNOWN = "vLLM, SGLang, llama-server, llama-cpp-python's server"


def attach(url: str, *, key: str | None = None, patience: Patience | None = None) -> LiveServer:
    """Ask the server at ``url`` what it is and what it says of its memory; nothing is computed there.

    ``/v1/models`` names its owner: ``vllm``, ``sglang``, ``llamacpp`` (llama-server), ``me`` (llama-cpp-python, whose
    ``/openapi.json`` says so in its title).

    Raises UsageError for a bad address or key, ServerError for a server that cannot be reached, is not ready, wants a
    key, breaks the limits, or is none of the known ones (with what it said instead).
    """
    client = Client(read_address(url), key=key, patience=patience)
    answer = client.get("/v1/models")
    where = client.address.words()
    if answer.status in (401, 403):
        raise ServerError(
            f"{where} wants an API key ({answer.status}): name the variable that holds it, --api-key-env"
        )
    if answer.status == 503:
        raise ServerError(f"{where} answers, but is not ready (503): its model is still loading")
    if answer.status != 200:
        raise ServerError(f"{where} is none of {KNOWN}: /v1/models answers {answer.status}{_server(answer)}")
    card = _card(read_json(answer, where=where + "/v1/models"), where)
    owner = text_of(card.get("owned_by")) or "nobody"
    if owner == "vllm":
        return attach_vllm(client, card)
    if owner == "sglang":
        return attach_sglang(client, card)
    if owner == "llamacpp" or answer.headers.get("server", "").lower().startswith("llama.cpp"):
        return attach_llama_server(client, card)
    found = attach_llama_cpp_python(client, card) if owner == "me" else None
    if found is None:
        raise ServerError(f"{where} is none of {KNOWN}: its model is owned by {owner!r}{_server(answer)}")
    return found


def _card(models: Any, where: str) -> dict[str, Any]:
    """The base model's card: adapters name a parent."""
    cards = models.get("data") if isinstance(models, dict) else None
    if not isinstance(cards, list) or not cards or not all(isinstance(card, dict) for card in cards):
        raise ServerError(f"{where}/v1/models lists no model")
    bases = [card for card in cards if card.get("parent") is None]
    card: dict[str, Any] = (bases or cards)[0]
    if text_of(card.get("id")) is None:
        raise ServerError(f"{where}/v1/models lists a model without a name")
    return card


def _server(answer: Answer) -> str:
    name = answer.headers.get("server")
    return f", its Server header is {name[:60]!r}" if name else ", it has no Server header"
