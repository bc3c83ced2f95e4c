"""Boxes of stored arrays: which bytes they take, fetched and decoded on threads."""
