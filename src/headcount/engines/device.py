"""What a card's driver leaves a process of its total: the step from nvidia-smi's MiB to what CUDA reports.

Seen: 79.19 GiB of 81,559 MiB (H100), 23.58 of 24,576 (RTX 3090), 39.39 of 40,960 (A100), 44.42 of 46,068 (L40S), 178.36 of
183,359 (B200), 484 MiB less on an RTX 4090 and 640 on an RTX PRO 6000: 0.35 to 0.70 GiB.
"""

from __future__ import annotations

from headcount.units import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator

CUDA_KEEPS = GIB // 2
CUDA_KEEPS_SPREAD = GIB // 5


def device_bytes(accelerator: Accelerator) -> int:
    """What CUDA is expected to report as the device's total; other vendors' tools show what a process gets."""
    return accelerator.driver_bytes - (CUDA_KEEPS if accelerator.vendor == "nvidia" else 0)
