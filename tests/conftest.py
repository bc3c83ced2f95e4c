"""Settings shared by all tests: how many examples, and eight and more host devices for JAX."""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

settings.register_profile(
    "weft",
    max_examples=int(os.environ.get("WEFT_FUZZ", "150")),
    deadline=None,  # machines are noisy; time is measured by the benchmarks
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
settings.load_profile("weft")
