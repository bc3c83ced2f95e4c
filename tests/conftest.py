"""Settings shared by all tests, and which of them belong to which tier.

`make test` runs every test that is not marked `slow`, with few random trials. `make test-all` runs
those that are, and repeats the tests marked `random` with all their trials. A test is marked `slow`
in its file; it is `random` if Hypothesis drives it or its module scales with `tests.trials`.
"""

import os

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from tests.trials import EXAMPLES

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

settings.register_profile(
    "weft",
    max_examples=EXAMPLES,
    deadline=None,  # machines are noisy; time is measured by the benchmarks
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("weft")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests that make random trials."""
    for item in items:
        if isinstance(item, pytest.Function) and (
            is_hypothesis_test(item.obj) or vars(item.module).keys() & {"trials", "fuzz"}
        ):
            item.add_marker("random")
