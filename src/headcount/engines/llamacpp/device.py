"""What a GPU offers llama.cpp, and what the process itself takes, before weights, caches and compute buffer.

    offered = what CUDA reports as total - fit target
    CUDA's total = driver's total - 0.5 GiB (0.3 to 0.7)      484 MiB less on an RTX 4090, 640 on an RTX PRO 6000
    context = 0.55 GiB (0.43 to 0.75)                          "unaccounted" in llama.cpp's own memory breakdown:
                                                               451 to 456 MiB on RTX 4090 (#15860, 2025-09),
                                                               749 MiB on an RTX PRO 6000 (#27953, 2026-09)

``--fit`` (on by default) leaves 1024 MiB free on every GPU, counted after the context exists.
"""

from __future__ import annotations

from headcount.engines.device import CUDA_KEEPS_SPREAD
from headcount.engines.device import device_bytes as expected_bytes
from headcount.units import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Settings
    from headcount.engines.llamacpp.options import Options
    from headcount.hardware import Accelerator

CONTEXT_LOW, CONTEXT, CONTEXT_HIGH = (round(size * GIB) for size in (0.43, 0.55, 0.75))
CONTEXTS = (CONTEXT, CONTEXT_LOW, CONTEXT_HIGH)
CONTEXT_SOURCE = "llama.cpp memory breakdowns, #15860 and #27953"


def device_bytes(accelerator: Accelerator, settings: Settings) -> int:
    """What the device reports to the process; ``--memory`` replaces it."""
    if settings.memory_bytes is not None:
        return settings.memory_bytes
    return expected_bytes(accelerator)


def device_spread(accelerator: Accelerator, settings: Settings) -> int:
    """How far that may be off, either way."""
    known = settings.memory_bytes is not None or accelerator.vendor != "nvidia"
    return 0 if known else CUDA_KEEPS_SPREAD


def reserved_bytes(total: int, settings: Settings, options: Options) -> int:
    """What stays free: the fit target, or the fraction that was asked for."""
    if settings.utilization is not None:
        return total - round(total * settings.utilization)
    if settings.reserve is not None:
        return round(total * settings.reserve)
    return options.fit_target
