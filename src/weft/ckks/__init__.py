"""Arrays over ciphertexts: packings, rotations and programs for CKKS."""
