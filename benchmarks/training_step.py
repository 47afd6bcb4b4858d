"""A training step (forward, backward, AdamW) with hand-derived gradients against the same model in stock torch.nn.

    ours     headcount.transformer.stacks, every backward our own (the kernel is named in the row)
    stock    torch.nn.Transformer / TransformerEncoder with the same sizes, weights, masks and optimiser, autograd
    ratio    ours / stock, within one round; budget 1.25 for the default kernel

Both start from the same weights and must give the same loss to 1e-4 before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

import torch
from torch import Tensor, nn
from torch.nn import functional

from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.positions import sinusoidal_table
from headcount.transformer.stacks.config import DecoderOnlyConfig, EncoderDecoderConfig
from headcount.transformer.stacks.decoder_only import DecoderOnly
from headcount.transformer.stacks.encoder_decoder import EncoderDecoder

BUDGET = 1.25
VOCABULARY = 1024
LAYERS = {"encoder-decoder": 2, "decoder-only": 4}


class Stock(nn.Module):
    """Either stack out of torch.nn's own modules: table and positions before, the tied projection after."""

    def __init__(self, kind: str, width: int, length: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = width
        self.table = nn.Embedding(VOCABULARY, width)
        layers = LAYERS[kind]
        pre = kind == "decoder-only"
        shape = {"d_model": width, "nhead": width // 64, "dim_feedforward": 4 * width, "dropout": 0.0}
        options = {**shape, "batch_first": True, "norm_first": pre, "activation": _gelu if pre else "relu"}
        encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**options),
            layers,
            nn.LayerNorm(width) if pre else None,
            enable_nested_tensor=False,
        )
        if pre:
            self.positions = nn.Parameter(torch.zeros(length, width))
            self.body: nn.Module = encoder
        else:
            decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), layers)
            self.body = nn.Transformer(
                width, width // 64, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
            )
            self.register_buffer("positions", sinusoidal_table(length, width))
        self.register_buffer("future", torch.ones(length, length, dtype=torch.bool).triu(1))

    def embed(self, ids: Tensor) -> Tensor:
        scale = 1.0 if self.kind == "decoder-only" else self.width**0.5
        return self.table(ids) * scale + self.positions

    def forward(self, ids: Tensor, target: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
        if target is None:
            out = self.body(self.embed(ids), mask=self.future, is_causal=True)
        else:
            out = self.body(
                self.embed(ids),
                self.embed(target),
                tgt_mask=self.future,
                tgt_is_causal=True,
                src_key_padding_mask=~keep,
                memory_key_padding_mask=~keep,
            )
        return functional.linear(out, self.table.weight)


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def copy_weights(ours: nn.Module, stock: Stock) -> None:
    """Give the stock model our weights: Q, K, V side by side, the norms in order."""
    with torch.no_grad():
        stock.table.weight.copy_(ours.inputs.embedding.weight)
        if stock.kind == "decoder-only":
            stock.positions.copy_(ours.inputs.positions.weight)
            _copy_column(ours.decoder, stock.body)
            return
        _copy_column(ours.encoder, stock.body.encoder)
        _copy_column(ours.decoder, stock.body.decoder)


def _copy_column(column: nn.Module, stack: nn.Module) -> None:
    for block, layer in zip(column.blocks, stack.layers, strict=True):
        for mine, theirs in (("attention", "self_attn"), ("cross_attention", "multihead_attn")):
            if hasattr(block, mine):
                heads, target = getattr(block, mine), getattr(layer, theirs)
                parts = (heads.query, heads.key, heads.value)
                target.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
                target.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
                target.out_proj.load_state_dict(heads.output.state_dict())
        layer.linear1.load_state_dict(block.feed_forward.up.state_dict())
        layer.linear2.load_state_dict(block.feed_forward.down.state_dict())
        for number, norm in enumerate(block.norms.values(), 1):
            getattr(layer, f"norm{number}").load_state_dict(norm.state_dict())
    if stack.norm is not None:
        stack.norm.load_state_dict(column.norm.state_dict())


def make_ours(kind: str, width: int, length: int, kernel: str) -> nn.Module:
    torch.manual_seed(0)
    sizes = {
        "vocabulary": VOCABULARY,
        "width": width,
        "layers": LAYERS[kind],
        "heads": width // 64,
        "feed_forward": 4 * width,
        "dropout": 0.0,
        "kernel": kernel,
    }
    if kind == "decoder-only":
        return DecoderOnly(DecoderOnlyConfig(**sizes, max_length=length))
    return EncoderDecoder(EncoderDecoderConfig(**sizes))


class Step:
    """One model with its optimiser; calling it takes a step and returns the loss."""

    def __init__(
        self, model: nn.Module, arguments: tuple[Tensor, ...], targets: Tensor, loss: Callable
    ) -> None:
        self.model = model
        self.arguments = arguments
        self.targets = targets
        self.loss = loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(*self.arguments), self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def stock_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_steps(kind: str, width: int, batch: int, length: int, kernels: list[str]) -> dict[str, Step]:
    draw = torch.Generator().manual_seed(1)
    ids, target = (torch.randint(VOCABULARY, (batch, length), generator=draw) for _ in range(2))
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=draw)
    keep = torch.arange(length) < lengths.index_fill(0, torch.tensor([0]), length)
    arguments = (ids,) if kind == "decoder-only" else (ids, target, keep)
    targets = target.roll(-1, 1)
    stock = Stock(kind, width, length)
    copy_weights(make_ours(kind, width, length, "naive"), stock)
    steps = {"stock": Step(stock, arguments, targets, stock_loss)}
    for kernel in kernels:
        steps[kernel] = Step(make_ours(kind, width, length, kernel), arguments, targets, cross_entropy)
    losses = {name: step() for name, step in steps.items()}
    if max(losses.values()) - min(losses.values()) > 1e-4:
        raise SystemExit(f"{kind}, {width} wide: the losses differ: {losses}")
    return steps


def measure(steps: dict[str, Step], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Milliseconds of each step in each round, one after the other within a round, after two warm-ups."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            start = clock()
            step()
            if number >= 2:
                times[name].append((clock() - start) * 1e3)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--models", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512])
    parser.add_argument("--kernels", nargs="+", default=["naive", "tiled", "fused"])
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the process's CPU time, not elapsed time: on a busy machine",
    )
    parser.add_argument(
        "--profile", action="store_true", help="also print where the naive kernel's step goes"
    )
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"--rounds {args.rounds}: at least 2")
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    print(
        f"PyTorch {torch.__version__}, {args.threads} threads, {args.rounds} rounds, float32, medians in ms of "
        f"{'CPU' if args.cpu_time else 'elapsed'} time"
    )
    print(f"batch {args.batch} x {args.length} tokens, V = {VOCABULARY:,}, F = 4 D, heads 64 wide\n")
    head = (
        f"{'model':<18}{'D':>5}  {'kernel':<9}{'stock':>9}{'ours':>9}{'ratio':>7}{'10 to 90 %':>15}  budget"
    )
    print(head + "\n" + "-" * len(head))
    held = True
    for kind in args.models:
        for width in args.widths:
            steps = make_steps(kind, width, args.batch, args.length, args.kernels)
            times = measure(steps, args.rounds, clock)
            for kernel in args.kernels:
                ratios = [own / other for own, other in zip(times[kernel], times["stock"], strict=True)]
                cuts = quantiles(ratios, n=10)
                ratio = median(times[kernel]) / median(times["stock"])
                verdict = ""
                if kernel == "naive":
                    held = held and ratio <= BUDGET
                    verdict = f"{BUDGET}: " + ("holds" if ratio <= BUDGET else "EXCEEDED")
                print(
                    f"{kind:<18}{width:>5}  {kernel:<9}{median(times['stock']):>9.1f}{median(times[kernel]):>9.1f}"
                    f"{ratio:>7.2f}{cuts[0]:>7.2f} to{cuts[-1]:>5.2f}  {verdict}",
                    flush=True,
                )
            if args.profile:
                profile(steps)
    return 0 if held else 1


def profile(steps: dict[str, Step]) -> None:
    for name in ("stock", "naive"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            for _ in range(5):
                steps[name]()
        print(name)
        print(
            found.key_averages().table(sort_by="self_cpu_time_total", row_limit=22, max_name_column_width=45)
        )


if __name__ == "__main__":
    sys.exit(main())
