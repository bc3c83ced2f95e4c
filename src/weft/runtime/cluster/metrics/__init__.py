"""What tasks took: measured, recorded, drawn, and told to others."""
