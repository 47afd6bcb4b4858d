"""Reading pasted start-up logs: one file per engine over a small line source and a table of patterns.

To read another wording, add a ``Pattern`` to the engine's table; to read another engine, write a ``Reader`` and name it in
``reading.py``.
"""

from headcount.verify.logs.reading import LogReading, read_log

__all__ = ["LogReading", "read_log"]
