"""Derivations as data: worked examples computed by the operations that the transformer runs, and their graph.

derivation.py   Derivation, Step, Quantity, Table: what a topic returns (no PyTorch, no printing)
topics/         one module per topic, each with ``derive(asked)``; the list with one line each in its ``__init__``
asked.py        the caller's options
examples.py     the built-in examples and ``--set``
worked.py       an example run forward and backward on a tape, with and without the what-ifs
assembled.py    real blocks, small enough to be drawn
graph.py        a tape as a graph of values and operations, foldable by scope
"""
