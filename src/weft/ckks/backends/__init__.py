"""Back-ends: what runs slot programs. SEAL on ciphertexts, and an exact simulator on numbers."""

from weft.ckks.backends.backend import Backend, Ciphertext, LevelScale
from weft.ckks.backends.seal import Seal
from weft.ckks.backends.simulator import Simulator

__all__ = ["Backend", "Ciphertext", "LevelScale", "Seal", "Simulator"]
