"""What the allocator counts beside the tensors: by hand, and on figures that vLLM printed after loading."""

from __future__ import annotations

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.allocator import blocks_of
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("sizes", "unused"),
    [
        ([1], 511),
        ([700 * KIB, 700 * KIB, 648 * KIB], 0),
        # A segment of 20 MiB: the third piece leaves 0.5 MiB, which cannot be split off.
        ([9 * MIB, 9 * MIB, MIB + MIB // 2], MIB // 2),
        # 12 MiB for 11.5; of 10.5 MiB a rest of 1.5 stays free, which the next small matrix takes.
        ([11 * MIB + MIB // 2], MIB // 2),
        ([10 * MIB + MIB // 2, MIB + MIB // 4], MIB // 4),
        ([12 * MIB, 14 * MIB], 0),
    ],
)
def test_blocks_by_hand(sizes: list[int], unused: int) -> None:
    assert blocks_of(sizes).counted - sum(sizes) == unused


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [
        ([], 0),
        ([1], 2),
        ([300 * KIB] * 6, 2),
        ([300 * KIB] * 7, 4),
        ([MIB], 2),
        ([MIB + 1], 20),
        ([8 * MIB, 8 * MIB], 20),
        ([8 * MIB, 8 * MIB, 8 * MIB], 40),
        # 12 MiB are left of the first segment, and a tensor of 11 MiB finds room there.
        ([8 * MIB, 11 * MIB], 20),
        ([10 * MIB], 10),
        ([17 * MIB + MIB // 2], 18),
        # Half a MiB is left of each segment: too little to be split off.
        ([17 * MIB + MIB // 2, MIB // 2], 18 + 2),
    ],
)
def test_segments_by_hand(sizes: list[int], segments: int) -> None:
    assert blocks_of(sizes).reserved == segments * MIB


# "Model loading took" per GPU [GiB], with its release: vLLM issues 15815 and 13061, llm-d-planner pull request 205, and logs in
# public repositories.
PRINTED = [
    ("qwen2.5-32b", 2, "0.8.2", 30.7098, 0.0002),
    ("deepseek-r1-distill-qwen-14b", 2, "0.7.2", 13.9476, 0.0005),
    ("qwen2.5-7b", 1, "0.19.0", 14.25, 0.0004),
    ("qwen2.5-72b", 2, "0.19.0", 67.8, 0.0001),
    ("gemma-3-1b", 1, "0.13.0", 1.9148, 0.0002),
    ("opt-125m", 1, "0.8.5", 0.2389, 0.0003),
    ("llama-3.1-8b", 1, "0.6.4", 14.9888, 0.0001),
    ("qwen2.5-vl-72b", 4, "0.8.3", 34.434, 0.0005),
    ("qwen3.5-9b", 1, "0.19.0", 17.66, 0.0006),
    ("llama-3.1-8b", 8, "0.6.4", 1.9028, 0.0002),
]


@pytest.mark.parametrize(("model", "tp", "version", "printed", "within"), PRINTED)
def test_loaded_bytes_are_the_printed_ones(
    model: str, tp: int, version: str, printed: float, within: float
) -> None:
    case = Case(
        model=read_model(model),
        accelerator=accelerator("h100-80gb"),
        layout=Layout(tp=tp),
        context=4096,
        settings=Settings(),
    )
    assert engine("vllm", version).loaded_bytes(case) / GIB == pytest.approx(printed, rel=within)
