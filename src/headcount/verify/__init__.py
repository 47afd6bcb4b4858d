"""Predicted against measured: the counts of ``cost/`` beside what the transformer really allocates and multiplies."""
