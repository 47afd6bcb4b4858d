"""Results -> console text or JSON."""
