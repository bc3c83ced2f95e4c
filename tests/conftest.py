"""Settings shared by all tests, and which of them belong to which tier.

`make test` runs every test that is not marked `slow`, with few random trials. `make test-all` runs
those that are, and repeats the tests marked `random` with all their trials. A test is marked `slow`
in its file; it is `random` if Hypothesis drives it or its module scales with `tests.trials`. Both
make the same trials every time; `make fuzz` makes new ones.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from tests.trials import EXAMPLES, FULL

# XLA compiles hundreds of tiny programs, each for one run: compiling fast matters, not their speed.
XLA_FLAGS = (
    "--xla_force_host_platform_device_count=16",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)
os.environ.setdefault("XLA_FLAGS", " ".join(XLA_FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# There is a process for each core; idle threads of BLAS and torch would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.disable()  # until all modules are imported; see pytest_collection_finish

settings.register_profile(
    "weft",
    max_examples=EXAMPLES,
    deadline=None,  # machines are noisy; time is measured by the benchmarks
    derandomize=EXAMPLES <= FULL,  # what passed once passes again; `make fuzz` looks further
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,  # by chance, the first examples may all be refused
    ],
    print_blob=True,
)
settings.load_profile("weft")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests that make random trials; put the longest file first, the rest stays sorted.

    Processes take whole files, and the last of them are short: both are busy to the end.
    """
    items.sort(key=lambda item: item.path.name != "test_docs.py")
    for item in items:
        if isinstance(item, pytest.Function) and (
            is_hypothesis_test(item.obj) or vars(item.module).keys() & {"trials", "fuzz"}
        ):
            item.add_marker("random")


def pytest_collection_finish():
    """Leave what the modules hold out of every garbage collection to come."""
    gc.freeze()
    gc.enable()
