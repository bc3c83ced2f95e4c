"""Object stores as a sink, through obstore."""
