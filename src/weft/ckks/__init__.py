"""The ciphertext target: arrays over a mesh of CKKS ciphertexts, on SEAL or an exact simulator."""

from weft.ckks.activations import Activation, fit, square
from weft.ckks.backends import Seal, Simulator
from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.bsgs import Split, split
from weft.ckks.calibrate import OperationTimes, calibrate
from weft.ckks.linear import LinearMap, linear
from weft.ckks.lower import Repacking, lower, predict, reshard
from weft.ckks.network import Network
from weft.ckks.packing import Packing
from weft.ckks.parameters import Parameters
from weft.ckks.plan import EncryptedPlan, plan
from weft.ckks.run import InferenceResult, check_ranges, run
from weft.ckks.slot_program import OperationCounts, SlotProgram, count, execute

__all__ = [
    "Activation",
    "Bounds",
    "EncryptedPlan",
    "InferenceResult",
    "LinearMap",
    "Network",
    "OperationCounts",
    "OperationTimes",
    "Packing",
    "Parameters",
    "Repacking",
    "Seal",
    "Simulator",
    "SlotProgram",
    "Split",
    "calibrate",
    "check_bounds",
    "check_ranges",
    "count",
    "execute",
    "fit",
    "linear",
    "lower",
    "plan",
    "predict",
    "reshard",
    "run",
    "split",
    "square",
]
