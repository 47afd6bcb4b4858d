"""Stacks: whole transformers, from token ids to logits."""
