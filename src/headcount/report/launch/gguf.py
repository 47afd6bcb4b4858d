"""Which GGUF file a llama.cpp or Ollama plan loads, and how it is made where MODEL is none.

    MODEL is a GGUF file, no other weights asked     that file
    anything else                                    NAME-MIX.gguf: converted with convert_hf_to_gguf.py in 16 bits, then
                                                     llama-quantize for any other mix

Tools and their options as in llama.cpp 0c1e57098 (2026-10-01): convert_hf_to_gguf.py, tools/quantize.
"""

from __future__ import annotations

import os
import shlex

from headcount.engines.llamacpp.weights import weight_mix
from headcount.report.launch.served_model import ServedModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.planner.plan import Plan
    from headcount.spec.model import ModelSpec

# What is loaded by llama.cpp's code and is always a GGUF file.
GGUF_ENGINES = ("llama.cpp", "ollama")
# Where a container looks for a file that is yet to be made; the same folder on the host.
_FOLDER = "/models"
_CONVERTED = ("f16", "bf16", "f32")
_STORED_PLAIN = ("F32", "F16", "BF16")


def gguf_model(plan: Plan, served: ServedModel, *, in_container: bool) -> ServedModel:
    """Return the GGUF file that the planned server loads, with notes on how it is made where MODEL is not that file."""
    model, settings = plan.deployment.model, plan.deployment.settings
    stored = _stored_file(model)
    if stored and settings.weights.strip().lower() == "auto":
        return served.replace(name=stored, folder=_mounted(stored), notes=())
    mix = weight_mix(model, settings.weights)
    base = _base_name(served.name)
    file = f"{base}-{mix.upper()}.gguf"
    program = "Ollama" if plan.deployment.engine.name == "ollama" else "llama-server"
    asked = "" if settings.weights.strip().lower() == "auto" else f"weights {settings.weights.strip()}: "
    notes = [
        f"{asked}{program} loads GGUF files only; {file} holds {served.name} in {mix.upper()} and is made by",
        *(f"  {line}" for line in _steps(model, served, stored, file, mix)),
    ]
    if in_container:
        notes.append(f"put {file} into {_FOLDER} of every host that may run it")
        return ServedModel(name=f"{_FOLDER}/{file}", folder=_FOLDER, notes=(*served.notes, *notes))
    if program == "llama-server":
        notes.append(
            f"or, where a repository holds that mix: -hf ORG/REPOSITORY:{mix.upper()} in place of -m FILE"
        )
    return ServedModel(name=file, notes=(*served.notes, *notes))


def _stored_file(model: ModelSpec) -> str:
    """The GGUF file the model was read from (the first of several parts), "" when it was read from another form."""
    checkpoint = model.checkpoint
    if checkpoint is None or checkpoint.file_format != "gguf":
        return ""
    return os.path.abspath(checkpoint.files[0])


def _mounted(file: str) -> str:
    """The folder a container must see: that of the file, and of what it links to (a hub cache keeps links)."""
    real = os.path.realpath(file)
    return os.path.dirname(file) if real == file else os.path.commonpath([file, real])


def _base_name(name: str) -> str:
    """``meta-llama/Llama-3.1-8B`` -> ``Llama-3.1-8B``; never with a leading dash."""
    last = name.rstrip("/").rpartition("/")[2]
    bare = last[: -len(".gguf")] if last.lower().endswith(".gguf") else last
    return bare.lstrip("-") or "model"


def _steps(model: ModelSpec, served: ServedModel, stored: str, file: str, mix: str) -> list[str]:
    base = _base_name(served.name)
    lines: list[list[str]] = []
    if stored:
        assert model.checkpoint is not None
        packed = any(dtype not in _STORED_PLAIN for dtype in model.checkpoint.bytes_by_dtype())
        lines.append(
            ["llama-quantize", *(["--allow-requantize"] if packed else []), stored, file, mix.upper()]
        )
        return [shlex.join(line) for line in lines]
    source = served.name
    if not served.folder:
        lines.append(["hf", "download", source, "--local-dir", base])
        source = base
    plain = mix if mix in _CONVERTED else ("f16" if model.dtype == "fp16" else "bf16")
    between = f"{base}-{plain.upper()}.gguf"
    lines.append(["python3", "convert_hf_to_gguf.py", source, "--outtype", plain, "--outfile", between])
    if mix not in _CONVERTED:
        lines.append(["llama-quantize", between, file, mix.upper()])
    return [shlex.join(line) for line in lines]
