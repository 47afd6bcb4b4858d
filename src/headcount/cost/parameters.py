"""Parameters by part, and the parameters one token is multiplied by.

P = sum over tensors of copies x prod(shape)            tied embeddings counted once
P_active = the same with ``top_k`` experts instead of E
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec


def parameters_by_part(model: ModelSpec) -> dict[str, int]:
    """Exact parameters of each part (``embedding``, ``attention``, ``experts``, ...), largest first.

    A multimodal model has the parts ``vision``, ``audio`` and ``projector`` too; ``ModelSpec.parameters`` is the sum of
    the others, the language model.
    """
    parts: dict[str, int] = {}
    for weight, times in model.all_weights():
        parts[weight.part] = parts.get(weight.part, 0) + weight.parameters * times
    for tower in model.towers:
        for weight in tower.weights:
            parts[weight.part] = parts.get(weight.part, 0) + weight.parameters
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token of text touches: ``top_k`` of E routed experts; embeddings in full; no towers."""
    return sum(weight.active_parameters * times for weight, times in model.all_weights())
