"""How a segment is looped: counts, injection, initial state, carry and read-out; one file an axis."""
