"""Files -> parameters, tokenisers, chat templates. Everything a file says is checked before it is believed.

source.py            the door: a path -> TensorSource; what lies outside the model's directory is never read
safetensors_file.py  memory-mapped safetensors: one file, a set, an index
gguf_file.py         memory-mapped GGUF, blocks of every quantised type opened row by row
transformations.py   the named transformations of a name table
names.py             a name table: ours, theirs, how
gguf_names.py        GGUF's tensor names, and what each architecture's converter did to them
gguf_settings.py     rotary positions as a GGUF file states them
letters.py           the sizes the tables' letters stand for
load.py              fill a network, tensor by tensor
model.py             all of it: a path -> a network that runs
tokenizer.py         text <-> ids, streaming; gguf_tokenizer.py rebuilds one from GGUF metadata
tokenizer_check.py   what a tokenizer.json could make of one letter, checked before it is built
chat.py              chat templates in a sandbox with a fuel gauge (sandbox.py): what they spend (template_fuel.py), where
                     (template_tree.py), and the most a filter or method can make (template_bounds.py)
"""
