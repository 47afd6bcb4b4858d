"""Parameters, bytes and FLOPs, computed from ``ModelSpec`` alone; ``transformer/`` counts them independently."""
