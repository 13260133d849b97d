"""Assertions outside the test files say what was compared, too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.interop.cases", "tests.interop.mixed_fleet")
