"""Scaled dot-product attention: the naive judge, the composed steps, the tiled kernel, PyTorch's fused one; masks."""
