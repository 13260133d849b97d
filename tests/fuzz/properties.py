"""Properties files: the syntax, the names, the values, what follows from them, and how all of it is told."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from kcl_host.config.keys import KEYS
from kcl_host.config.properties import load_settings
from kcl_host.errors import ConfigurationError
from tests.fuzz.driver import Target
from tests.fuzz.mutation import mutated, nasty_number, nasty_text

SAMPLES = Path(__file__).parents[1] / "data" / "config"
REGIONS = ("us-east-1", "eu-west-1")
NAMES = tuple(key.name for key in KEYS)
_PIECES = (
    b"\\u", b"\\u00zz", b"\\u0000", b"\\u001b[31m", b"\\\n", b"=", b":", b"  ", b"#", b"!", b"\xe4", b"\\n", b"\r",
)  # fmt: skip
_PREFIXES = ("stream.orders", "retrieval", "pollingConfig", "fanoutConfig")
_VALUES = (
    "true", "100", "0", "-1", "orders", "a,b", "DefaultCredentialsProvider", "AT_TIMESTAMP", "1700000000", "P1D",
    "http://localhost:1", "us-east-1", "python3 app.py", "'python3' \"app.py", "k=v,w", "POLLING", "FANOUT", "1e400",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::1:role/x|s", "PT99999999999999999999H", "9" * 400, "Infinity",
)  # fmt: skip


@cache
def _samples() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(SAMPLES.glob("*.properties")))


def make(rng: Random) -> bytes:
    if rng.random() < 0.4:
        return mutated(rng, rng.choice(_samples()), _PIECES)
    lines = [b"streamName = orders", b"applicationName = app", b"executableName = python3 app.py"]
    for _ in range(rng.randrange(1, 7)):
        name = rng.choice(NAMES) if rng.random() < 0.9 else nasty_text(rng)
        if rng.random() < 0.1:
            name = (
                f"{rng.choice(('stream.orders', 'retrieval', 'pollingConfig', 'fanoutConfig', nasty_text(rng)))}.{name}"
            )
        value = rng.choice((rng.choice(_VALUES), nasty_text(rng), str(nasty_number(rng))))
        lines.append(_escaped(name) + rng.choice((b" = ", b"=", b":", b" ")) + _escaped(value))
    rng.shuffle(lines)
    data = b"\n".join(lines)
    return mutated(rng, data, _PIECES) if rng.random() < 0.2 else data


def _escaped(text: str) -> bytes:
    return b"".join(
        bytes([ord(c)]) if " " < c <= "~" and c not in "\\=:#!" else b"\\u%04x" % ord(c) if ord(c) < 0x10000 else b"?"
        for c in text
    )


@cache
def _file() -> Path:
    folder = TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name) / "app.properties"


def run(data: bytes) -> None:
    path = _file()
    path.write_bytes(data)
    try:
        loaded = load_settings(
            str(path), environ={}, strict=len(data) % 4 == 0, random_suffix="x", hostname="host", known_regions=REGIONS
        )
    except ConfigurationError as error:
        assert str(error)
        return
    assert all(isinstance(word, str) for word in loaded.settings.child.command)
    assert all(finding.message for finding in loaded.findings)
    msgspec.json.encode(loaded.origins)


TARGET = Target("properties", make, run)
