"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A time is never asserted, hypothesis's own limits included: a busy machine is no defect.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.register_profile("long", settings.get_profile("untimed"), max_examples=1000)  # scripts/ci-full
settings.load_profile("untimed")
