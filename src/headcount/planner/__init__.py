"""``fit`` and ``book``: the two questions, over a ``Deployment``."""
