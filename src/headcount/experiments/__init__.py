"""Experiments that could falsify the chapters' claims: seeded, repeated, with a verdict computed from the numbers.

from headcount.experiments.registry import run
result = run("gradients", seed=1, widths=(16, 1024))
result.verdict, result.reason

registry.py     names, claims, options; ``run``, the one door (no PyTorch until an experiment runs)
result.py       ``Result``: claim, tables, verdict; ``Spread`` over repeats
seeds.py        one generator per (seed, repeat, purpose)
variance.py saturation.py gradients.py      why scores are divided by sqrt(d_k)
lookup.py       the toy task and the small network that scaling.py and heads.py train
scaling.py heads.py norms.py                what training makes of it
equivariance.py recurrent.py crossover.py   positions; attention against a recurrent layer; FLOPs against time
"""
