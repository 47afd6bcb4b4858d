"""Generation: prompts in, tokens out, one at a time, through caches that keep what was already computed."""
