"""A Hugging Face id over the network: config.json, and tensor sizes from safetensors headers by range requests.

Needs ``pip install headcount[hub]``; nothing but headers is fetched.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnknownNameError
from headcount.spec import catalogue
from headcount.spec.checkpoint import Checkpoint, TensorInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec


def read_hub(repo_id: str, overrides: dict[str, int] | None) -> tuple[ModelSpec, Checkpoint | None]:
    """Read ``org/name`` from the hub: its model, and its tensors when safetensors headers are there.

    Raises UnknownNameError when the hub client is not installed, ModelFileError when the hub cannot answer.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import logging
    except ImportError:
        raise UnknownNameError(
            what="model",
            given=repo_id,
            allowed=catalogue.names(),
            hint="not in the local Hugging Face cache or the catalogue; `pip install headcount[hub]` asks the hub",
        ) from None
    from headcount.spec.huggingface.config import read_config_file, spec_from_config

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    _require_reachable(constants.ENDPOINT, repo_id)
    try:
        path = huggingface_hub.hf_hub_download(repo_id, "config.json")
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelFileError(f"{repo_id}: the hub did not give a config.json: {_first_line(error)}") from None
    spec = spec_from_config(
        read_config_file(path), name=repo_id, source=f"hub: {repo_id}", overrides=overrides
    )
    if overrides:
        return spec, None
    try:
        metadata = huggingface_hub.get_safetensors_metadata(repo_id)
    except (HfHubHTTPError, OSError, ValueError) as error:
        note = (
            f"no safetensors headers on the hub ({_first_line(error)}): weights are computed from the config"
        )
        return spec.replace(notes=(*spec.notes, note)), None
    tensors = tuple(
        TensorInfo(
            name=name,
            dtype=info.dtype,
            shape=tuple(info.shape),
            nbytes=info.data_offsets[1] - info.data_offsets[0],
        )
        for file in metadata.files_metadata.values()
        for name, info in file.tensors.items()
    )
    checkpoint = Checkpoint(
        path=repo_id,
        file_format="safetensors",
        tensors=tensors,
        metadata={},
        files=tuple(metadata.files_metadata),
    )
    return spec, checkpoint


def _require_reachable(endpoint: str, repo_id: str) -> None:
    """Say at once that there is no network; the hub client would retry for half a minute."""
    import os
    import socket

    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    host = endpoint.partition("://")[2].partition("/")[0].partition(":")[0]
    if proxied or os.environ.get("HF_HUB_OFFLINE"):
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        raise ModelFileError(
            f"{repo_id}: not in the local Hugging Face cache or the catalogue, and {host} cannot be reached; "
            "give a path to its config.json"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
