"""``show``: a packed model's own bytes stand beside what packing every matrix alike would give."""

from __future__ import annotations

import pytest

from headcount.cli.main import dispatch


def weights_shown(model: str, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    assert dispatch(["show", model]) == 0
    text = capsys.readouterr().out.partition("\nWeights\n")[2].partition("\n\n")[0]
    return {
        line[:20].strip(): int(line[20:42].strip().removesuffix("B").replace(",", ""))
        for line in text.splitlines()
    }


def test_packed_weights_are_shown_as_stored(capsys: pytest.CaptureFixture[str]) -> None:
    """gpt-oss-20b: total_size of its published model.safetensors.index.json; DeepSeek-V3 packs in blocks, not by row."""
    assert weights_shown("gpt-oss-20b", capsys)["mxfp4 (as stored)"] == 13_761_264_768
    blocks = weights_shown("deepseek-v3", capsys)
    assert blocks["fp8 (as stored)"] > blocks["fp8"]


def test_plain_weights_need_no_such_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("stored" in name for name in weights_shown("llama-3.1-8b", capsys))
