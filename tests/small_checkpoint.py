"""A small random Llama with a tokenizer of bytes, saved as a user would find it: config, weights, tokenizer, chat template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 258,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save_small_checkpoint(folder: Path, *, template: str | None = TEMPLATE, **changes: Any) -> Path:
    """Write the checkpoint; needs torch, safetensors, tokenizers."""
    import tokenizers
    import torch
    from safetensors.torch import save_file

    from headcount.spec.huggingface.config import spec_from_config
    from headcount.transformer.families import llama
    from headcount.transformer.families.registry import build_network
    from headcount.transformer.weights.names import read_names

    config = {**CONFIG, **changes}
    network = build_network(spec_from_config(config, name="small", source="test"), seed=0).float()
    table = {row.ours: row.theirs for row in read_names(llama.NAMES)}
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for name, parameter in network.named_parameters():
        layer = re.search(r"layers\.(\d+)\.", name)
        number = layer.group(1) if layer else ""
        theirs = table[re.sub(r"layers\.\d+\.", "layers.{i}.", name)].replace("{i}", number)
        noise = torch.randn(parameter.shape, generator=draw) * 0.1
        tensors[theirs] = (parameter.detach() + noise).contiguous()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = tokenizers.Tokenizer(tokenizers.models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    words.add_special_tokens(["<s>", "</s>"])
    words.save(str(folder / "tokenizer.json"))
    stated = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    if template is not None:
        stated["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
    return folder
