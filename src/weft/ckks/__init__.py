"""Arrays over ciphertexts: the CKKS target, on real encryption and on an exact simulator."""
