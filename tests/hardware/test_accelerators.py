"""The data file against tool outputs, memory buses and matrix units published elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from headcount.errors import UnknownNameError
from headcount.hardware import Accelerator, accelerator, accelerators

ALL = accelerators()
IDS = [card.name for card in ALL]
each = pytest.mark.parametrize("card", ALL, ids=IDS)

EXPECTED = [
    "a100-80gb",
    "a100-pcie-80gb",
    "a100-40gb",
    "h100-80gb",
    "h100-pcie",
    "h100-nvl",
    "h200",
    "b200",
    "gb300",
    "l40s",
    "l4",
    "t4",
    "v100-32gb",
    "rtx-3060-12gb",
    "rtx-4090",
    "rtx-5090",
    "mi210",
    "mi300x",
    "mi355x",
    "gaudi2",
    "gaudi3",
    "dgx-spark",
    "jetson-thor",
    "strix-halo-128gb",
    "m2-ultra",
    "m3-ultra",
    "m4-max",
]

# nvidia-smi totals that Modal listed for its fleet on 2025-01-23:
# GitHub modal-labs/modal-client#2797 (also: an H100 shows 85,520,809,984 bytes).
NVIDIA_SMI_MIB = {
    "A100-80GB": 81920,
    "H100-80GB": 81559,
    "A100-40GB": 40960,
    "L40S": 46068,
    "A10": 23028,
    "L4": 23034,
    "T4": 15360,
}

# Totals in bytes as the tool prints them. MI300X: GitHub ROCm/legacy-rocm-build#4750; the other rocm-smi
# totals recur in public logs; H100: GitHub modal-labs/modal-client#2797.
TOOL_BYTES = {
    "h100-80gb": 85_520_809_984,
    "mi300x": 206_141_652_992,
    "mi350x": 309_220_868_096,
    "mi355x": 309_220_868_096,
    "mi250x-gcd": 68_702_699_520,
    "rx-7900-xtx": 25_753_026_560,
}

# Metal's recommendedMaxWorkingSetSize as llama.cpp logs it, in 10**6 bytes with two decimals.
METAL_MB = {"m4-max-128gb": 103079.22, "m4-max-36gb": 28991.03, "m3-ultra-512gb": 498216.21}

# Memory bus width [bits] and data rate per pin [Gb/s], from the vendors' specification pages.
# B200: GitHub pytorch/ao#4002 reads 7680 bits and 3996 MHz from the device (double data rate).
MEMORY_BUS = {
    "b200": (7680, 2 * 3.996),
    "t4": (256, 10),
    "l4": (192, 12.5),
    "l40s": (384, 18),
    "a10": (384, 12.5),
    "a40": (384, 14.5),
    "rtx-a6000": (384, 16),
    "rtx-a4000": (256, 14),
    "rtx-3060-12gb": (192, 15),
    "rtx-3080-10gb": (320, 19),
    "rtx-3080-ti": (384, 19),
    "rtx-3090": (384, 19.5),
    "rtx-3090-ti": (384, 21),
    "rtx-4060-ti-16gb": (128, 18),
    "rtx-4070-ti": (192, 21),
    "rtx-4070-ti-super": (256, 21),
    "rtx-4080": (256, 22.4),
    "rtx-4080-super": (256, 23),
    "rtx-4090": (384, 21),
    "rtx-5060-ti-16gb": (128, 28),
    "rtx-5070": (192, 28),
    "rtx-5070-ti": (256, 28),
    "rtx-5080": (256, 30),
    "rtx-5090": (512, 28),
    "rx-7900-xtx": (384, 20),
    "a100-40gb": (5120, 2 * 1.215),
    "mi300x": (8192, 5.2),
    "mi355x": (8192, 8),
    "dgx-spark": (256, 8.533),
    "jetson-agx-thor-128gb": (256, 8.533),
    "jetson-agx-orin-64gb": (256, 6.4),
    "strix-halo-128gb": (256, 8),
    "m2-ultra-192gb": (1024, 6.4),
    "m3-ultra-512gb": (1024, 6.4),
    "m4-max-128gb": (512, 8.533),
    "m4-max-36gb": (384, 8.533),
}

# Multiprocessors or compute units, dense half-precision multiply-adds of each per clock (fp32 accumulate),
# boost GHz: the vendors' architecture papers. A rate quoted with sparsity would be twice this product.
MATRIX_UNITS = {
    "v100-32gb": (80, 512, 1.53),
    "t4": (40, 512, 1.59),
    "a100-80gb": (108, 1024, 1.41),
    "a10": (72, 512, 1.695),
    "a40": (84, 512, 1.74),
    "rtx-a6000": (84, 512, 1.8),
    "l4": (58, 512, 2.04),
    "l40s": (142, 512, 2.52),
    "rtx-6000-ada": (142, 512, 2.505),
    "h100-80gb": (132, 2048, 1.83),
    "h100-pcie": (114, 2048, 1.62),
    "rtx-3060-12gb": (28, 256, 1.777),
    "rtx-3080-10gb": (68, 256, 1.71),
    "rtx-3090": (82, 256, 1.695),
    "rtx-4090": (128, 256, 2.52),
    "rtx-4080": (76, 256, 2.505),
    "rtx-4060-ti-16gb": (34, 256, 2.535),
    "rtx-5090": (170, 256, 2.407),
    "rtx-5080": (84, 256, 2.617),
    "rtx-5070-ti": (70, 256, 2.452),
    "rtx-pro-6000": (188, 512, 2.617),
    "mi210": (104, 512, 1.7),
    "mi300x": (304, 1024, 2.1),
    "mi355x": (256, 2048, 2.4),
}


@pytest.mark.parametrize(("name", "mib"), NVIDIA_SMI_MIB.items())
def test_reported_mib_is_what_nvidia_smi_shows(name: str, mib: int) -> None:
    card = accelerator(name)
    assert card.reported_mib == mib
    assert card.driver_bytes == mib * 2**20
    assert str(mib) in card.driver_bytes_source


@pytest.mark.parametrize(("name", "total"), TOOL_BYTES.items())
def test_driver_bytes_are_the_total_of_the_tool(name: str, total: int) -> None:
    assert accelerator(name).driver_bytes == total


@pytest.mark.parametrize(("name", "megabytes"), METAL_MB.items())
def test_apple_share_is_what_metal_grants(name: str, megabytes: float) -> None:
    assert round(accelerator(name).driver_bytes / 1e6, 2) == megabytes


@pytest.mark.parametrize(("name", "bus"), MEMORY_BUS.items())
def test_bandwidth_is_bus_width_times_data_rate(name: str, bus: tuple[int, float]) -> None:
    bits, gigabits_per_pin = bus
    # Apple rounds 819.2 down to 800 for the M2 Ultra: 2.4 %.
    assert accelerator(name).bandwidth_gb_s == pytest.approx(bits / 8 * gigabits_per_pin, rel=0.025)


@pytest.mark.parametrize(("name", "units"), MATRIX_UNITS.items())
def test_half_precision_rate_is_dense(name: str, units: tuple[int, int, float]) -> None:
    count, multiply_adds, gigahertz = units
    dense = count * multiply_adds * 2 * gigahertz / 1e3
    assert accelerator(name).dense_tflops["fp16"] == pytest.approx(dense, rel=0.02)


def test_enough_cards_of_every_kind() -> None:
    assert len(ALL) >= 60
    assert {card.vendor for card in ALL} >= {"nvidia", "amd", "intel", "apple"}
    for name in EXPECTED:
        accelerator(name)


def test_names_and_aliases_are_unique_without_case_and_separators() -> None:
    spelled = [re.sub("[^a-z0-9]", "", name.lower()) for card in ALL for name in (card.name, *card.aliases)]
    assert sorted(spelled) == sorted(set(spelled))


@each
def test_entry_is_complete(card: Accelerator) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", card.name)
    assert card.sources and all(card.sources)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", card.as_of)
    figures = (card.datasheet_gb, card.bandwidth_gb_s, *card.dense_tflops.values())
    assert card.dense_tflops and all(figure > 0 for figure in figures)
    optional = (card.link_gb_s_per_direction, card.tdp_w, card.reported_mib)
    assert all(figure is None or figure > 0 for figure in optional)
    assert (card.reported_mib is None) == (card.reported_source is None)
    assert hash(card) == hash(accelerator(card.name)) and card == accelerator(card.name)


@each
def test_reported_memory_is_near_the_datasheet(card: Accelerator) -> None:
    if card.reported_mib is None:
        assert card.driver_bytes == card.datasheet_bytes == card.datasheet_gb * 10**9
        assert "no tool output known" in card.driver_bytes_source
        return
    assert 0.80 <= card.driver_bytes / card.datasheet_bytes <= 1.08
    if not card.unified_memory:
        assert card.driver_bytes >= card.datasheet_bytes  # so the decimal datasheet figure is a lower bound


@each
def test_unverified_entries_say_why(card: Accelerator) -> None:
    words = " ".join((card.note, card.reported_source or ""))
    assert card.verified != ("recalled" in words or words.startswith("rule") or "rule, not seen" in words)
    if card.verified:
        assert any(not source.startswith("recalled") for source in card.sources)


@each
def test_narrower_types_are_not_quoted_with_sparsity(card: Accelerator) -> None:
    rates = card.dense_tflops
    assert set(rates) <= {"fp16", "bf16", "fp8", "int8", "fp4"}
    half = rates.get("bf16", rates.get("fp16", 0))
    assert half > 0 and rates.get("fp16", half) == half
    assert rates.get("fp8", half) <= 2.03 * half  # NVIDIA rounds the L40S to 362.05 and 733
    assert rates.get("int8", half) <= 4.02 * half  # consumer cards halve fp16 with fp32 accumulate, not int8
    assert rates.get("fp4", half) <= 8.02 * half


def test_cards_outside_the_engines_are_flagged() -> None:
    outside = {card.name for card in ALL if not card.modelled}
    assert outside == {card.name for card in ALL if card.vendor in {"google", "aws"}}
    assert all("engines do not run" in accelerator(name).note for name in outside)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("A100", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("H100_SXM", "h100-80gb"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("  L40S ", "l40s"),
        ("m2-ultra", "m2-ultra-192gb"),
    ],
)
def test_names_forgive_case_and_separators(given: str, name: str) -> None:
    assert accelerator(given).name == name


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("h100-80g", "h100-80gb"),
        ("a100-80", "a100-80gb"),
        ("rtx-4091", "rtx-4090"),
        ("mi250x", "mi250x-gcd"),
        ("4060 ti", "rtx-4060-ti-16gb"),
        ("mi-300", "mi300x"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(given: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        accelerator(given)
    assert near in caught.value.nearest
    assert near in str(caught.value) and repr(given) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["", "-", "abacus", "x" * 5000])
def test_hopeless_names_are_refused(given: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown GPU"):
        accelerator(given)


def test_lookup_imports_nothing_slow() -> None:
    code = (
        "import sys; from headcount.hardware import accelerator; accelerator('h100');"
        "print(*{'dataclasses', 'typing', 'inspect', 'logging', 'pathlib', 'importlib.metadata',"
        " 'importlib.resources', 'difflib', 'numpy', 'torch'} & set(sys.modules))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
