"""A plan as tasks: strands of applications, tiles of strands, and what lies between them."""
