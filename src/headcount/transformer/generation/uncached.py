"""Generation as the equations state it, without a cache: for every token the whole sequence is computed again.

The judge of every cached path, and the measure of what a cache saves: n tokens cost 1 + 2 + ... + n = n (n + 1) / 2 key and
value projections per layer instead of n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headcount.errors import UsageError
from headcount.transformer.generation.reply import Asked
from headcount.transformer.generation.sampling import choose


def generate_uncached(network: Any, prompt: Sequence[int], asked: Asked, *, number: int = 0) -> Iterator[int]:
    """The tokens of a reply, one by one; the stop token is the last."""
    history = list(prompt)
    generator = asked.sampling.generator(number)
    device = next(network.parameters()).device
    for _ in range(asked.limit):
        ids = torch.tensor([history], device=device)
        with torch.inference_mode():
            logits = network(ids, rows=torch.tensor([len(history) - 1], device=device))[0, 0]
        token = choose(logits, asked.sampling, history, generator)
        history.append(token)
        yield token
        if token in asked.stop_tokens:
            return


class ProjectionCount:
    """Counts, by hooks on the projections that ran, for how many tokens each layer projected keys and values.

    A context manager; ``per_layer`` is what every layer counted, and all must agree.
    """

    def __init__(self, network: Any) -> None:
        self.counts: dict[str, int] = {}
        self._hooks: list[Any] = []
        self._projections = {
            name: module
            for name, module in network.named_modules()
            # Heads project keys, latent attention projects its latent, a state-space layer its inputs.
            if name.endswith((".mixer.key", ".mixer.down", ".mixer.input"))
        }

    def __enter__(self) -> ProjectionCount:
        for name, module in self._projections.items():
            self._hooks.append(module.register_forward_hook(self._counter(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def per_layer(self) -> int:
        """Tokens projected in each layer; UsageError when layers differ (or none ran)."""
        found = {self.counts.get(name, 0) for name in self._projections}
        if len(found) != 1:
            raise UsageError(f"layers projected different counts of tokens: {sorted(found)}")
        return found.pop()

    def _counter(self, name: str) -> Any:
        def count(_: Any, inputs: tuple[torch.Tensor, ...], __: Any) -> None:
            self.counts[name] = self.counts.get(name, 0) + inputs[0].shape[:-1].numel()

        return count
