"""Every model type: ``ModelSpec.parameters`` equals the reference class's own, built without allocating weights.

Each type is built from its default config and from random configs (every size and flag drawn); each config is read twice, as
a file that states everything and as one that leaves out what equals the class default.
"""

from __future__ import annotations

import pytest

from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.registry import supported_types

from .configs import NEEDED, random_keys
from .models import CONFIG_OF, NO_REFERENCE_CLASS, reference_config, reference_parameters, spelled_out

pytestmark = pytest.mark.reference
TYPES = [model_type for model_type in supported_types() if model_type not in NO_REFERENCE_CLASS]
SEEDS = range(6)


def test_types_without_a_class_are_few_and_named() -> None:
    assert set(NO_REFERENCE_CLASS) <= set(supported_types())
    assert len(TYPES) >= 110


@pytest.mark.parametrize("model_type", TYPES)
def test_parameters_equal_the_reference(model_type: str) -> None:
    compared = 0
    for keys in (NEEDED.get(model_type, {}), *(random_keys(model_type, seed) for seed in SEEDS)):
        try:
            config = reference_config(model_type, keys)
            expected = reference_parameters(model_type, config)
        except Exception as refused:
            # The class itself cannot be built from this draw (a validator, a head width that does not divide).
            assert keys, f"{model_type}: the default config must build: {refused}"
            continue
        if _heads_do_not_divide(config):
            continue  # the class builds it, no forward pass runs; headcount refuses it by name
        forms = [spelled_out(model_type, config)]
        if model_type not in CONFIG_OF:
            forms.append({**keys, "model_type": model_type})
        for form in forms:
            spec = spec_from_config(form, name=model_type, source="test")
            assert spec.parameters == expected, keys
        compared += 1
    assert compared >= 2, f"only {compared} configs of {model_type} could be built"


def _heads_do_not_divide(config: object) -> bool:
    """Whether one layer kind has query heads that its key/value heads do not divide."""
    pairs = [
        ("num_attention_heads", "num_key_value_heads"),
        ("swa_num_attention_heads", "swa_num_key_value_heads"),
    ]
    for queries, values in pairs:
        q, kv = getattr(config, queries, None), getattr(config, values, None)
        if isinstance(q, int) and isinstance(kv, int) and kv and q % kv:
            return True
    # MiMo's sliding layers have twice the key/value heads of its full ones.
    doubled = getattr(config, "model_type", "") == "mimo_v2_flash"
    return doubled and config.num_attention_heads % (2 * config.num_key_value_heads) != 0  # type: ignore[attr-defined]
