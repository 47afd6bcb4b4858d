"""Attention kernels side by side: time, peak memory, and the distance to this machine's matmul rate.

    time    forward + backward of tiled, naive, PyTorch's fused kernel and PyTorch's math kernel; rounds interleaved in one
            process, medians and the spread of the per-round ratio to fused
    memory  one fresh process per row: peak resident memory during forward + backward, above what is resident with the
            operands and the output's gradient allocated
    naive   a fresh process whose address space may grow by 8 GiB runs the naive kernel at the largest length

    FLOPs counted: causal pairs n (n + 1) / 2, 2 products forward and 5 backward of 2 H operations each, per head.

Run on a quiet machine: python benchmarks/attention.py [--lengths 1024 4096 16384] [--rounds 5] [--dtype float32]
Exits 1 when a budget is exceeded: tiled at most 1.5 x fused in time from n = 4,096 on, 1.2 x in peak memory at the largest
length, and peak memory linear in n within 1.3 x from n = 4,096 to the largest.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal
from headcount.transformer.attention.rule import Rule
from headcount.units import GIB, MIB

HEADS, WIDTH = 8, 64
KERNELS = ("fused", "tiled", "math", "naive")
# Above this the scores of the storing kernels pass several GiB.
STORED_LIMIT = 4096
TIME_BUDGET, MEMORY_BUDGET, LINEAR_BUDGET = 1.5, 1.2, 1.3


def operands(n: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(0)
    shape = (1, HEADS, n, WIDTH)
    inputs = [torch.randn(shape, generator=draw).to(dtype).requires_grad_() for _ in range(3)]
    return inputs, torch.randn(shape, generator=draw).to(dtype)


def step(kernel: str, inputs: list[Tensor], d_out: Tensor) -> tuple[float, float]:
    """Seconds of forward and of backward."""
    start = time.perf_counter()
    if kernel == "math":
        with sdpa_kernel(SDPBackend.MATH):
            out = attend(*inputs, rule=Rule(mask=Causal()), kernel="fused")
    else:
        out = attend(*inputs, rule=Rule(mask=Causal()), kernel=kernel)
    middle = time.perf_counter()
    torch.autograd.grad(out, inputs, d_out)
    return middle - start, time.perf_counter() - middle


def flops(n: int) -> int:
    return HEADS * n * (n + 1) // 2 * 7 * 2 * WIDTH


def matmul_rate(dtype: torch.dtype, size: int = 2048) -> float:
    """FLOP/s of one large product: what the kernels could reach at best."""
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / median(seconds)


def time_kernels(n: int, rounds: int, dtype: torch.dtype) -> dict[str, list[tuple[float, float]]]:
    inputs, d_out = operands(n, dtype)
    kernels = [kernel for kernel in KERNELS if n <= STORED_LIMIT or kernel in ("fused", "tiled")]
    times: dict[str, list[tuple[float, float]]] = {kernel: [] for kernel in kernels}
    for turn in range(rounds + 1):
        for kernel in kernels:
            taken = step(kernel, inputs, d_out)
            if turn:
                times[kernel].append(taken)
    return times


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def memory_worker(kernel: str, n: int, dtype: torch.dtype, limit: int | None) -> None:
    """Print the peak above the operands as JSON; with ``limit``, say whether the step fits in that much more."""
    step(kernel, *operands(64, dtype))
    inputs, d_out = operands(n, dtype)
    if limit is not None:
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + limit, mapped + limit))
        try:
            step(kernel, inputs, d_out)
            print(json.dumps({"fits": True}))
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            print(json.dumps({"fits": False}))
        return
    before = resident_bytes()
    step(kernel, inputs, d_out)
    print(json.dumps({"bytes": peak_bytes() - before}))


def in_process(*words: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def report_time(lengths: list[int], rounds: int, dtype: torch.dtype) -> bool:
    rate = matmul_rate(dtype)
    print(f"matmul 2,048^3: {rate / 1e9:,.0f} GFLOP/s, {torch.get_num_threads()} threads, {dtype}\n")
    print("| n | kernel | forward ms | backward ms | x fused (spread) | GFLOP/s | of matmul |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for n in lengths:
        times = time_kernels(n, rounds, dtype)
        base = [sum(pair) for pair in times["fused"]]
        for kernel, pairs in times.items():
            forward, backward = (median(pair[index] for pair in pairs) for index in (0, 1))
            ratios = sorted(sum(pair) / fused for pair, fused in zip(pairs, base, strict=True))
            reached = flops(n) / (forward + backward)
            print(
                f"| {n:,} | {kernel} | {forward * 1e3:,.1f} | {backward * 1e3:,.1f} | {median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {reached / 1e9:,.0f} | {reached / rate:.0%} |"
            )
            if kernel == "tiled" and n >= 4096:
                good = good and median(ratios) <= TIME_BUDGET
    return good


def report_memory(lengths: list[int], dtype: str) -> bool:
    print("| n | kernel | peak MiB above the operands | x fused |\n|---|---|---|---|")
    peaks: dict[tuple[str, int], float] = {}
    for n in lengths:
        for kernel in ("fused", "tiled"):
            found = [in_process("--worker", kernel, str(n), "--dtype", dtype)["bytes"] for _ in range(3)]
            peaks[kernel, n] = median(found)
            ratio = peaks[kernel, n] / peaks["fused", n]
            print(f"| {n:,} | {kernel} | {peaks[kernel, n] / MIB:,.1f} | {ratio:.2f} |")
    last = lengths[-1]
    good = peaks["tiled", last] <= MEMORY_BUDGET * peaks["fused", last]
    if 4096 in lengths and last > 4096:
        growth = peaks["tiled", last] / peaks["tiled", 4096] / (last / 4096)
        print(f"\ntiled memory from 4,096 to {last:,} tokens grows {growth:.2f} x in proportion to n")
        good = good and growth <= LINEAR_BUDGET
    fits = in_process("--worker", "naive", str(last), "--limit", str(8 * GIB), "--dtype", dtype)["fits"]
    scores = HEADS * last * last * 4
    print(
        f"naive at {last:,} tokens with 8 GiB to spare: {'fits' if fits else 'out of memory'} "
        f"(one float32 score matrix: {scores / GIB:.1f} GiB)\n"
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--worker", nargs=2, metavar=("KERNEL", "N"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    if args.worker:
        memory_worker(args.worker[0], int(args.worker[1]), dtype, args.limit)
        return 0
    # Memory first: a child's peak starts at its parent's resident size, which the timing makes large.
    good = report_memory(args.lengths, args.dtype)
    good = report_time(args.lengths, args.rounds, dtype) and good
    print("budgets hold" if good else "a budget is exceeded")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
