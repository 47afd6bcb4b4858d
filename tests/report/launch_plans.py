"""A plan in one call, for the tests of what is launched from it."""

from __future__ import annotations

from typing import Any

from headcount.engines import engine
from headcount.engines.base import Settings
from headcount.hardware import accelerator
from headcount.planner.fit import fit
from headcount.planner.plan import Deployment, Plan
from headcount.spec.reader import read_model


def planned(
    model: str = "llama-3.1-8b",
    *,
    gpu: str = "h100-80gb",
    context: int = 4096,
    name: str = "vllm",
    version: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    **settings: Any,
) -> Plan:
    deployment = Deployment(
        model=read_model(model),
        engine=engine(name, version),
        accelerator=accelerator(gpu),
        settings=Settings(**settings),
        tp=tp,
        pp=pp,
        dp=dp,
    )
    return fit(deployment, gpus=None, context=context, allow_long=True)
