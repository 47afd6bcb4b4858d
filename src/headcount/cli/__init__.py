"""One module per command: parse, ask one room, render."""
