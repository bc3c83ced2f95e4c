"""Search: the plans worth choosing from."""
