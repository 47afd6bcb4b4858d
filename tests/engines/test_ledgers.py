"""Every engine's ledger: its numbers are what its formulas say, its terms add up, and a measured term says so."""

from __future__ import annotations

import math
import re

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.calibration import Calibration
from headcount.hardware import accelerator
from headcount.ledger import Ledger, Term
from headcount.spec.reader import read_model
from headcount.units import GIB

ENGINES = ("sglang", "llama.cpp", "ollama", "tensorrt-llm", "transformers")


def case(
    model: str = "llama-3.1-8b",
    *,
    gpu: str = "h100-80gb",
    tp: int = 1,
    pp: int = 1,
    context: int = 8192,
    **asked: object,
) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator(gpu),
        layout=Layout(tp=tp, pp=pp),
        context=context,
        settings=Settings(**asked),
    )


def terms(ledger: Ledger) -> dict[str, Term]:
    return {node.symbol: node for _, node in ledger.walk() if isinstance(node, Term)}


def calibration(name: str, **changes: object) -> Calibration:
    given: dict[str, object] = {
        "engine": name,
        "engine_version": engine(name).version,
        "model": "llama-3.1-8b",
        "gpu": "h100-80gb",
        "tp": 1,
        "pp": 1,
        "origin": "a start of last week",
        "device_bytes": 79 * GIB + 7,
        "weight_bytes": 15 * GIB + 5,
        "activation_bytes": GIB + 3,
        "non_torch_bytes": GIB // 2 + 1,
        "graph_bytes": GIB // 4,
        "cache_bytes": 50 * GIB,
        "utilization": 0.9,
    }
    return Calibration(**{**given, **changes})


MEASURED = {
    "sglang": "MXW",
    "llama.cpp": "MXW",
    "ollama": "MXW",
    "tensorrt-llm": "MXWA",
    "transformers": "MXW",
}
VALUES = {"M": 79 * GIB + 7, "W": 15 * GIB + 5, "X": GIB // 2 + 1, "A": GIB + 3}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("path", ["", "mine.json"])
def test_a_measured_term_says_where_and_the_page_adds_up(name: str, path: str) -> None:
    found = engine(name).replica(case(calibration=calibration(name, path=path)))
    budget, shown = found.budget, terms(found.ledger)
    spent = budget.reserved + budget.weights + sum(size for _, size in budget.overhead)
    assert budget.memory == spent + budget.kv_budget
    assert found.conversations * found.kv_bytes_per_conversation_per_gpu <= budget.kv_budget
    assert (budget.memory, budget.weights) == (VALUES["M"], VALUES["W"])
    for symbol, term in shown.items():
        if symbol in MEASURED[name]:
            assert (term.value, term.formula) == (VALUES[symbol], "measured"), symbol
            assert term.source == (path or "a start of last week")
        else:
            assert term.formula != "measured", symbol


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_called_measured_that_is_not(name: str) -> None:
    other = calibration(name, gpu="a100-80gb")
    shown = terms(engine(name).replica(case(calibration=other)).ledger)
    assert all(term.formula != "measured" for term in shown.values())
    said = terms(engine(name).replica(case(calibration=calibration(name), memory_bytes=70 * GIB)).ledger)
    assert said["M"].value == 70 * GIB
    assert said["M"].formula == "--memory"


ASKED: list[tuple[str, dict[str, object]]] = [
    ("sglang", {}),
    ("sglang", {"model": "gemma-3-12b"}),
    ("sglang", {"model": "gpt-oss-20b"}),
    ("sglang", {"model": "qwen3-next-80b-a3b", "tp": 4}),
    ("llama.cpp", {}),
    ("llama.cpp", {"model": "gemma-3-4b", "weights": "q4_k_m", "pp": 2}),
    ("ollama", {"weights": "q4_k_m"}),
    ("tensorrt-llm", {}),
    ("tensorrt-llm", {"model": "gpt-oss-20b", "arguments": (("max-attention-window", "model"),)}),
    ("tensorrt-llm", {"model": "deepseek-v3", "gpu": "h200", "tp": 8}),
    ("transformers", {}),
    ("transformers", {"arguments": (("cache", "paged"),)}),
    ("transformers", {"utilization": 0.9, "max_num_seqs": 4}),
]


@pytest.mark.parametrize(("name", "asked"), ASKED, ids=[f"{n} {a}" for n, a in ASKED])
def test_numbers_are_words_and_figures(name: str, asked: dict[str, object]) -> None:
    """No Python tuple, list or None is shown, and no term with a formula of other terms lacks its numbers."""
    for _, node in engine(name).replica(case(**asked)).ledger.walk():
        if isinstance(node, Term):
            assert not re.search(r"\(\d+,\)|\[\d|None|True|False", node.numbers), node
            assert node.formula, node
            if re.search(r"\b[A-Z] - [A-Z]\b|floor\(", node.formula):
                assert re.search(r"\d", node.numbers) or node.symbol == "A", node


def evaluated(numbers: str) -> float:
    """``numbers`` as arithmetic: ``x`` multiplies, commas part thousands; what follows a semicolon is talk."""
    text = numbers.split(";")[0].split(", pages")[0]
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).replace(" x ", " * ")
    names = {"floor": math.floor, "ceil": math.ceil, "min": min, "max": max}
    return float(eval(text, {"__builtins__": {}}, names))


WORKED = [
    ("sglang", {}, ("C", "N")),
    ("sglang", {"model": "qwen3-next-80b-a3b", "tp": 4}, ("S", "N", "N_conv")),
    ("sglang", {"model": "gpt-oss-20b"}, ("N", "N_s", "N_conv")),
    (
        "sglang",
        {"model": "gpt-oss-20b", "arguments": (("disable-radix-cache", ""), ("max-running-requests", "64"))},
        ("N",),
    ),
    ("llama.cpp", {"weights": "q4_k_m"}, ("M", "W", "C")),
    ("ollama", {"weights": "q4_k_m"}, ("W", "E", "C")),
    ("tensorrt-llm", {}, ("F", "R", "N_conv")),
    ("transformers", {}, ("B", "e", "N_conv", "O", "C")),
    ("transformers", {"utilization": 0.9, "max_num_seqs": 4}, ("B", "e", "N_conv", "O", "C")),
    ("transformers", {"arguments": (("cache", "paged"),)}, ("R", "P")),
]


@pytest.mark.parametrize(("name", "asked", "symbols"), WORKED, ids=[f"{n} {a}" for n, a, _ in WORKED])
def test_numbers_give_the_value(name: str, asked: dict[str, object], symbols: tuple[str, ...]) -> None:
    shown = terms(engine(name).replica(case(**asked)).ledger)
    for symbol in symbols:
        term = shown[symbol]
        text = term.numbers.split(" = ")[0]
        assert evaluated(text) == pytest.approx(term.value, rel=1e-6, abs=1.0 if symbol in "CR" else 0.0), (
            term
        )


def test_the_multimodal_factor_is_said() -> None:
    """Gemma-3's tower: 27 layers of 1,152: 0.95 (1 - 0.1 (27 x 1152^2 / (24 x 1024^2) - 1)) = 0.9097."""
    term = terms(engine("sglang").replica(case("gemma-3-12b")).ledger)["q"]
    assert "then x the multimodal factor" in term.formula
    factor = 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))
    assert term.numbers.endswith(f"x {factor:.6g}")
    assert term.value == pytest.approx(0.835 * factor)
    plain = terms(engine("sglang").replica(case()).ledger)["q"]
    assert plain.formula == "(MiB - reserved MiB) / MiB, rounded to 0.001"
    asked = terms(engine("sglang").replica(case(utilization=0.7)).ledger)["q"]
    assert (asked.formula, asked.value) == ("as asked", 0.7)


def test_host_and_gpu_share_the_file() -> None:
    """Llama-3.1-8B Q4_K_M: 128,256 x 4,096 numbers of the token table at 4.5 bits stay in the host's memory."""
    shown = terms(engine("llama.cpp").replica(case(weights="q4_k_m")).ledger)
    assert shown["W_h"].value == 128_256 * 4096 * 9 // 16
    assert shown["W_h"].value + shown["W"].value == pytest.approx(4_912_898_048, rel=1e-5)
    tied = terms(engine("llama.cpp").replica(case("gemma-3-4b", weights="bf16")).ledger)
    assert "the table as output matrix" in tied["W"].formula
    # Ten blocks and the output on the GPU: the other 22 lie with the table.
    part = terms(
        engine("llama.cpp").replica(case(weights="q4_k_m", arguments=(("n-gpu-layers", "11"),))).ledger
    )
    assert part["W_h"].value + part["W"].value == pytest.approx(4_912_898_048, rel=1e-5)


def test_builds_carry_their_day() -> None:
    shown = terms(engine("llama.cpp", "b7000").replica(case()).ledger)
    assert shown["n"].source == "llama.cpp b7000 (2025-11-09)"
    shown = terms(engine("llama.cpp", "2025-07-20").replica(case()).ledger)
    assert shown["n"].source == "llama.cpp of 2025-07-20"


@pytest.mark.parametrize(
    ("model", "said"),
    [("gemma-3-12b", True), ("gemma-2-9b", True), ("gpt-oss-20b", False), ("llama-3.1-8b", False)],
)
def test_sglang_says_where_windows_are_not_kept(model: str, said: bool) -> None:
    found = engine("sglang").replica(case(model))
    assert any("keeps every token in all" in line for line in found.warnings) is said
    short = engine("sglang").replica(case(model, context=512))
    assert not any("keeps every token" in line for line in short.warnings)
