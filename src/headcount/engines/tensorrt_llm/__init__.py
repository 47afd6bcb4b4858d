"""TensorRT-LLM, PyTorch backend: what is free after loading, times a fraction, cut into blocks of 32 tokens."""

from headcount.engines.tensorrt_llm.engine import TensorrtLlm

__all__ = ["TensorrtLlm"]
