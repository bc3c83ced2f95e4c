"""Planning: the shardings that follow from those a person wrote."""

from weft.plan.propagate import Propagation, Strategy, propagate

__all__ = ["Propagation", "Strategy", "propagate"]
