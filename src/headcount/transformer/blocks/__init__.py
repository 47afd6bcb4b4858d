"""Blocks: sub-layers, their norms and the residual stream that runs past them."""
