"""Vision and audio towers of multimodal configs: ``registry.py`` finds the builder of the outer ``model_type``."""
