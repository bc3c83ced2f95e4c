"""Images and plates in OME-NGFF 0.5."""
