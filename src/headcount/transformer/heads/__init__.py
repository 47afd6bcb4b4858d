"""What each attention head does, what it is worth, and what fewer would cost.

    sites.py        the layers of a network that attend by heads
    maps.py         attention weights of a text, one layer in memory at a time
    statistics.py   confidence, entropy, sink mass, distances: numbers per head
    roles.py        previous-token, positional, self, sink, induction and rare-token heads, by published definitions
    importance.py   expected sensitivity of the loss to a head's gate (Michel et al. 2019)
    gates.py        a factor per head before W_O
    pruning.py      leave-one-out, orders of removal, perplexity as heads go
    prune.py        heads really removed: rows of W_Q, columns of W_O, whole key/value groups
    regroup.py      fewer key/value heads by mean-pooling (Ainslie et al. 2023)
    geometry.py     the ``ModelSpec`` of what is left, so that every count still holds
    sample.py       the text that heads are judged by; ordinary.txt is the one that comes with the package

Everything measured here is a property of a head *and* of the text it was measured on.
"""
