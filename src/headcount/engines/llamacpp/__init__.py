"""llama.cpp and Ollama: caches are allocated whole at start, so the arithmetic is exact where the build is known.

builds   which rules a build follows           caches   cells and bytes of every cache
weights  tensors on each device                mixes    GGUF types of the named quantisations
compute  the graph's temporaries, predicted    engine, ollama   the two engines
own_engine   caches of the engine that Ollama had of its own
"""
