"""Families: one small file per kind of model, assembled from the blocks, built from a ``ModelSpec``."""
