"""What a conversation keeps between steps: codecs of a row, places where rows lie, one cache per mixer of a layer."""
