"""Who printed a line: the rank, and the lane where one file holds several engines side by side."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_HEAD = 400
# (Worker_TP0 pid=71)  (EngineCore_DP0 pid=7)  (VllmWorker rank=1 pid=9)  (RayWorkerWrapper pid=9, ip=10.0.0.2)
_PROCESS = re.compile(r"\(([A-Za-z_][\w.:-]{0,60}) ([^()\n]{0,80})\)")
_PID = re.compile(r"pid=(\d{1,10})")
_RANK = re.compile(r"rank=(\d{1,6})")
# [2025-10-16 09:06:22 TP5]  [2025-10-16 09:06:22 DP0 TP1]
_SGLANG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z]{2}\d{1,4}){1,5})\]")
# [TRT-LLM] [RANK 0] [I]   and mpirun's [1,0]<stdout>:
_TENSORRT = re.compile(r"\[RANK (\d{1,4})\]|\[\d{1,3},(\d{1,4})\]<std")
_STAGE = re.compile(r"\[(Stage-\d{1,3})\]")
_DATE = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d)[T ]|\[([01]\d)/([0-3]\d)/(20\d\d)-")
_REPLICA = re.compile(r"DP(\d{1,4})")


def rank_of(text: str) -> str:
    """``Worker_TP0``, ``EngineCore``, ``VllmWorkerProcess 1786``, ``DP0 TP1``, ``rank 3``; "" when the line names none."""
    head = text[:_HEAD]
    for match in _PROCESS.finditer(head):
        pid = _PID.search(match[2])
        if pid is None:
            continue
        rank = _RANK.search(match[2])
        if rank is not None:
            return f"{match[1]} {rank[1]}"
        # Workers of one name differ by their process id only; engine and API processes are one each.
        alike = match[1] in ("VllmWorkerProcess", "RayWorkerWrapper", "RayWorkerVllm", "VllmWorker")
        return f"{match[1]} {pid[1]}" if alike else match[1]
    found = _SGLANG.search(head)
    if found is not None:
        return found[1].strip()
    found = _TENSORRT.search(head)
    if found is not None:
        return f"rank {found[1] or found[2]}"
    return ""


def lane_of(text: str) -> str:
    """The stage of a pipeline of engines (vLLM-Omni prints ``[Stage-1]``); "" for a plain engine."""
    if "[Stage-" not in text:
        return ""
    found = _STAGE.search(text[:_HEAD])
    return found[1] if found else ""


_TENSOR_RANK = re.compile(r"\bTP(\d{1,3})\b")
_STAGE_RANK = re.compile(r"\bPP(\d{1,3})\b")


def tensor_ranks(ranks: Iterable[str]) -> int | None:
    """Tensor-parallel size by the highest labelled rank, as the power of two that holds it (``TP6`` -> 8).

    None when no rank is labelled, or ``TP0`` alone: an excerpt need not show every rank.
    """
    highest = _highest(_TENSOR_RANK, ranks)
    return 1 << highest.bit_length() if highest else None


def pipeline_ranks(ranks: Iterable[str]) -> int | None:
    """Pipeline-parallel size by the highest labelled stage (``PP1`` -> 2); None as in ``tensor_ranks``."""
    highest = _highest(_STAGE_RANK, ranks)
    return highest + 1 if highest else None


def first_alone(ranks: Iterable[str]) -> tuple[str, ...]:
    """The labels ``TP0`` and ``PP0`` where no other of the kind was seen: how many there are is then not said."""
    found = (("TP0", _highest(_TENSOR_RANK, ranks)), ("PP0", _highest(_STAGE_RANK, ranks)))
    return tuple(label for label, highest in found if highest == 0)


def _highest(label: re.Pattern[str], ranks: Iterable[str]) -> int | None:
    numbers = [int(found[1]) for rank in ranks if (found := label.search(rank.replace("_", " ")))]
    return max(numbers, default=None)


def replica_of(rank: str) -> str:
    """The data-parallel index in a rank's name, "" without one."""
    found = _REPLICA.search(rank)
    return found[1] if found else ""


def date_of(text: str) -> str | None:
    """``2025-10-16`` where the line states a full date; vLLM's own stamp (month and day only) does not."""
    found = _DATE.search(text[:120])
    if found is None:
        return None
    return found[1] or f"{found[4]}-{found[2]}-{found[3]}"
