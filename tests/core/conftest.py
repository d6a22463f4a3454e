"""Hypothesis profiles: `fast` by default, `slow` with many more and longer schedules.

WEFT_TEST_PROFILE=slow selects `slow`.
"""

import os

from hypothesis import HealthCheck, settings

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fast", max_examples=400, deadline=None, derandomize=True, suppress_health_check=QUIET
)
settings.register_profile("slow", max_examples=20_000, deadline=None, suppress_health_check=QUIET)
settings.load_profile(os.environ.get("WEFT_TEST_PROFILE", "fast"))
