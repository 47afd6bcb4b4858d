"""Accelerators and prices: data files beside this module, each entry with its source and date.

accelerator("H100 SXM").driver_bytes      # 81559 MiB = 85,520,809,984 B, not 80 GB
price("h100-80gb").usd_per_hour           # None where no price is on file
"""

from __future__ import annotations

from headcount.hardware.accelerator import Accelerator, accelerator, accelerators
from headcount.hardware.price import Price, price

__all__ = ["Accelerator", "Price", "accelerator", "accelerators", "price"]
