"""A plan as something that can be started: a command line, or a file for Docker Compose, Kubernetes or Ray Serve.

artefact.py     one plan, one kind -> the text            read_back.py   the text -> what it would start
planned.py      what every kind writes about a plan       read_flags.py  an engine's flags -> settings
served_model.py what the server is told to load; gguf.py: the GGUF file of llama.cpp and Ollama
line.py  compose.py  kubernetes.py  ray_serve.py          the kinds; yaml_text.py quotes for the last three
"""
