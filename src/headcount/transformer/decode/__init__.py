"""One decode step as one compiled program (CPU): all layers, all threads, no Python in between.

    compiler.py                                  numba, and how this room adds instructions to it
    lanes.py                                     sixteen float32 numbers as one value: loads, stores, arithmetic, exp
    memory.py                                    numbers at addresses
    panels.py                                    weights packed in the order in which they are read
    tiles.py                                     the inner loops: 32 rows of a weight times 1, 2, 4 or 8 vectors
    attention_tiles.py                           the inner loops of attention
    feed.py normalise.py bends.py                what is done to vectors before and after
    instructions.py                              the program: a table of numbers, one row per instruction
    stream.py heads.py attend.py project.py      what the instructions do
    kernel.py                                    the loop over the table; compiled functions kept on disk
    crew.py                                      the threads that run it, and where they wait for each other
    compose.py                                   a network's layers as instructions
    memories.py turns.py                         caches and rotary positions, as the program reads them
    program.py                                   ``compile_program(network, weights=...)`` and ``Program.step``

Needs numba. Nothing else in the package imports this room when it is loaded.
"""
