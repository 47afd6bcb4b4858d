"""Hugging Face configs: ``config.py`` reads the file, ``registry.py`` finds the builder of its ``model_type``."""
