"""endpointPort and endpointAddress."""

from __future__ import annotations

import pytest

from kcl_host.config.properties import load_settings
from kcl_host.config.settings import EndpointSettings
from kcl_host.errors import ConfigurationError
from tests.unit.test_config_keys import REQUIRED


def endpoint(**given: str) -> tuple[EndpointSettings, list[str]]:
    loaded = load_settings(None, environ={}, overrides=REQUIRED | given, random_suffix="r", hostname="h")
    return loaded.settings.endpoint, [finding.key for finding in loaded.findings if finding.key.startswith("endpoint")]


def test_off_unless_asked_for_and_then_on_loopback() -> None:
    assert endpoint() == (EndpointSettings(port=0, address="127.0.0.1"), [])
    assert endpoint(endpointPort="9400") == (EndpointSettings(port=9400, address="127.0.0.1"), [])
    assert endpoint(endpointPort="9400", endpointAddress="::") == (EndpointSettings(port=9400, address="::"), [])
    assert endpoint(endpointAddress="0.0.0.0")[1] == ["endpointAddress"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpointPort": "70000"}, "endpointPort"),
        ({"endpointPort": "http"}, "endpointPort"),
        ({"endpointPort": "65534", "processes": "3"}, "leaves no port for each of 3 processes"),
        ({"endpointPort": "9400", "endpointAddress": "localhost"}, "must be an IP address"),
    ],
)
def test_what_is_wrong(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        endpoint(**given)
