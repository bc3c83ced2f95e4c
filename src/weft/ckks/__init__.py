"""The ciphertext target: arrays over a mesh of CKKS ciphertexts, on SEAL or an exact simulator."""

from weft.ckks.activations import Activation, fit, square
from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.bsgs import Split, split
from weft.ckks.calibrate import OperationTimes, calibrate
from weft.ckks.cost import Cost, predict
from weft.ckks.inference import Outcome, check_ranges, run
from weft.ckks.linear import LinearMap, linear
from weft.ckks.lower import lower
from weft.ckks.network import Network
from weft.ckks.packing import Packing
from weft.ckks.parameters import Parameters
from weft.ckks.planner import Plan, plan
from weft.ckks.program import Program, count, execute
from weft.ckks.reshard import Reshard, reshard
from weft.ckks.seal import Seal
from weft.ckks.simulator import Simulator

__all__ = [
    "Activation",
    "Bounds",
    "Cost",
    "LinearMap",
    "Network",
    "OperationTimes",
    "Outcome",
    "Packing",
    "Parameters",
    "Plan",
    "Program",
    "Reshard",
    "Seal",
    "Simulator",
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
