"""One call of prompt attention: tensors to addresses, scratch, threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headcount.transformer.attention.masks import Chunked, Everything, SlidingWindow
from headcount.transformer.attention.rule import Rule
from headcount.transformer.decode import prompt_job as at
from headcount.transformer.decode.hands import together
from headcount.transformer.decode.instructions import bits_of
from headcount.transformer.decode.prompt import private_bytes, prompt_kernel
from headcount.transformer.decode.tiles import BF16, FP32, group_bytes


def attend_prompt(
    q_BNTH: Tensor, k_BKSH: Tensor, v_BKSW: Tensor, sinks_N: Tensor | None, *, rule: Rule
) -> Tensor:
    """Attention by the compiled kernel; the operands were checked (``attention.compiled``).

    The result lies row by row, all heads of a row side by side: the projection behind it reads it as it is.
    """
    form = BF16 if q_BNTH.dtype == torch.bfloat16 else FP32
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q_BNTH, k_BKSH, v_BKSW))
    (B, N, T, H), (_, K, S, W) = q.shape, v.shape
    out = torch.empty(B, T, N, W, dtype=q.dtype).transpose(1, 2)
    sinks = None if sinks_N is None else sinks_N.float().contiguous()
    threads = min(torch.get_num_threads(), max(1, B * N * T // at.QUERY_BLOCK))
    own = private_bytes(form, H, W)
    panels, per_panel = -(-S // at.PANEL), group_bytes(form, 1)
    key_bytes, value_bytes = (B * K * panels * -(-width // 32) * per_panel for width in (H, W))
    # Uninitialised, and at a multiple of 64 as PyTorch's memory on the CPU is.
    scratch = torch.empty(key_bytes + value_bytes + threads * own, dtype=torch.uint8)
    job = np.zeros(at.JOB_NUMBERS + 8, np.int64)
    address = job.ctypes.data + -job.ctypes.data % 64
    table = job[(address - job.ctypes.data) // 8 :]

    def put(place: int, *numbers: int) -> None:
        table[place // 8 : place // 8 + len(numbers)] = numbers

    for place, x in ((at.Q, q), (at.K, k), (at.V, v), (at.OUT, out)):
        put(place, x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:3]))
    mask = rule.mask
    put(at.BATCH, B, N, K, T, S, H, W, rule.query_start, int(not isinstance(mask, Everything)))
    put(at.WINDOW, mask.window if isinstance(mask, SlidingWindow) else 0)
    put(at.CHUNK, mask.chunk if isinstance(mask, Chunked) else 0)
    put(at.SCALE, bits_of(rule.resolved(H)), bits_of(rule.soft_cap or 0.0))
    put(
        at.SINKS, 0 if sinks is None else sinks.data_ptr(), scratch.data_ptr(), scratch.data_ptr() + key_bytes
    )
    put(at.PRIVATE, scratch.data_ptr() + key_bytes + value_bytes, own)
    run = prompt_kernel(form)
    together(lambda thread: run(address, thread), threads)
    return out
