"""Caches of a running conversation against plain histories, the spec's bytes, gguf and transformers."""
