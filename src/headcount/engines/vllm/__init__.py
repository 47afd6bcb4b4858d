"""vLLM, by release: ``engine.py`` is the door.

rules.py      what each release does differently           layers.py   ModelSpec -> cache layers of one rank
groups.py     which layers share a block table              pages.py    blocks, tokens, concurrency
memory.py     what start-up keeps from the cache            refusals.py what is not served
ledger.py     the arithmetic as terms
"""
