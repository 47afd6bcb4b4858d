"""What a model is: readers and ``ModelSpec``."""
