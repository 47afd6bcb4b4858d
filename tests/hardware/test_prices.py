"""Prices against the rows of the public catalogue they were read from."""

from __future__ import annotations

import re

import pytest

from headcount.errors import UnknownNameError, UsageError
from headcount.hardware import accelerator, price
from headcount.hardware.price import KINDS, prices


# skypilot-org/skypilot-catalog, catalogs/v8: nebius@0082b0435f39, runpod@01acdfd419ce, lambda@0f4070387edc;
# node prices divided by the accelerators of the node.
@pytest.mark.parametrize(
    ("name", "kind", "usd_per_hour"),
    [
        ("H100", "on demand", 2.95),
        ("h100", "spot", 10.00 / 8),
        ("h200", "on demand", 3.50),
        ("h200", "spot", 11.60 / 8),
        ("b200", "on demand", 44.00 / 8),
        ("l40s", "on demand", 1.5484),
        ("a100-pcie-80gb", "on demand", 1.39),
        ("a6000", "on demand", 1.09),
        ("v100-16gb", "on demand", 6.32 / 8),
    ],
)
def test_price_is_the_catalogue_row(name: str, kind: str, usd_per_hour: float) -> None:
    found = price(name, kind=kind)
    assert found is not None
    assert found.usd_per_hour == pytest.approx(usd_per_hour)
    assert found.kind == kind


def test_no_price_is_none_and_no_card_is_an_error() -> None:
    assert price("m4-max-36gb") is None
    assert price("b200", kind="spot") is None
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        price("abacus")
    with pytest.raises(UsageError, match="on demand, spot"):
        price("h100", kind="reserved")


def test_every_price_is_dated_and_names_a_known_card() -> None:
    assert prices()
    for entry in prices():
        assert accelerator(entry.accelerator).name == entry.accelerator
        assert entry.usd_per_hour > 0 and entry.provider and entry.region and entry.source
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry.as_of)
        assert entry.kind in KINDS
