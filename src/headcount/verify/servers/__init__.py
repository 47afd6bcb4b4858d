"""A running server beside the rules: what it says of itself, and how many conversations it really holds.

    server = attach("http://127.0.0.1:8000")        # vLLM, SGLang, llama-server or llama-cpp-python
    server.observation                              # what it said of its memory
    server.usage()                                  # what it holds now
    hold(server, conversations=8, context_tokens=2048, yours=True)

``http.py`` bounds every exchange in bytes and time; ``metrics.py`` reads Prometheus text; ``attach.py`` finds out which
server answers; ``vllm.py``, ``sglang.py`` and ``llamacpp.py`` know what theirs says; ``load.py`` holds conversations.
"""
