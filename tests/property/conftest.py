"""``pytest tests/property --hypothesis-profile=long`` looks for new bugs; by default the same small sample."""

from hypothesis import HealthCheck, settings

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile("small", max_examples=25, deadline=None, derandomize=True, suppress_health_check=CHECKS)
settings.register_profile("long", max_examples=3000, deadline=None, suppress_health_check=CHECKS)
settings.load_profile("small")
