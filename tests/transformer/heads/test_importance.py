"""What is no measurement: weights that are not numbers."""

from __future__ import annotations

import pytest
import torch
from random_decoders import VOCABULARY, random_decoder

from headcount.errors import OperandError
from headcount.transformer.heads.importance import importance


def test_weights_that_are_not_numbers_have_no_important_head() -> None:
    network, _ = random_decoder()
    with torch.no_grad():
        network.norm.weight[3] = torch.nan
    ids = torch.randint(0, VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(0))
    with pytest.raises(OperandError, match="not numbers"):
        importance(network, ids)
