"""headcount: how many conversations fit on these GPUs, and how many GPUs to book.

Every number is derived from the transformer's own mathematics and kept with its formula, inputs, unit and source.
Rooms, from the foundation up: ``spec`` (what a model is), ``hardware`` (cards), ``cost`` (parameters, bytes, FLOPs),
``engines`` (what a serving engine reserves), ``planner`` (fit, book), ``report`` and ``cli``. See docs/architecture.md.
"""

__version__ = "0.1.0"
