"""Chains of providers as botocore sessions, against a small server in the place of STS and the metadata services."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from kcl_host.aws.credentials import known_regions, session_for
from kcl_host.config.credentials import parse_chain
from kcl_host.config.settings import CredentialsProvider
from kcl_host.errors import AccessError

ROLE = "arn:aws:iam::111122223333:role/kcl"


class Server:
    """Answers with what `respond` makes of method, path, headers and body; keeps all of them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        self.respond: Callable[[str, str], tuple[int, str]] = lambda path, body: (404, "")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            do_POST = do_PUT = do_GET

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers, body))
                status, text = outer.respond(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(poll_interval=0.01))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials from the machine that runs the tests."""
    for name in (
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
        "AWS_DEFAULT_REGION", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CREDENTIAL_FILE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("BOTO_CONFIG", str(tmp_path / "boto"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def chain(text: str) -> tuple[CredentialsProvider, ...]:
    parsed = parse_chain(text)
    assert parsed.errors == ()
    return parsed.providers


def access_key(text: str, region: str | None = "eu-west-1") -> str:
    credentials = session_for(chain(text), region).get_credentials()
    assert credentials is not None
    return str(credentials.get_frozen_credentials().access_key)


def sts_answer(action: str, key: str, valid_for: timedelta) -> str:
    expiration = (datetime.now(UTC) + valid_for).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f"<{action}Response xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><{action}Result><Credentials>"
        f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        f"<Expiration>{expiration}</Expiration></Credentials></{action}Result></{action}Response>"
    )


def use_environment(monkeypatch: pytest.MonkeyPatch, key: str = "AKENV") -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def write_profiles(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n"
        "[team]\naws_access_key_id = AKTEAM\naws_secret_access_key = s\n"
    )


def test_environment_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    use_environment(monkeypatch)
    assert access_key("EnvironmentVariableCredentialsProvider") == "AKENV"
    assert access_key("DefaultCredentialsProvider") == "AKENV"
    credentials = session_for((), None).get_credentials()
    assert credentials is not None
    assert credentials.access_key == "AKENV"


def test_a_profile_by_name_by_environment_and_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(tmp_path)
    use_environment(monkeypatch)
    assert access_key("ProfileCredentialsProvider|team") == "AKTEAM"
    assert access_key("ProfileCredentialsProvider") == "AKDEFAULT"
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert access_key("ProfileCredentialsProvider") == "AKTEAM"


def test_the_first_provider_that_yields_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(tmp_path)
    text = "SystemPropertyCredentialsProvider, ProfileCredentialsProvider|nobody, {}, ProfileCredentialsProvider|team"
    text = text.format("EnvironmentVariableCredentialsProvider")
    assert access_key(text) == "AKTEAM"
    use_environment(monkeypatch)
    assert access_key(text) == "AKENV"


def test_nothing_is_looked_up_before_it_is_needed_and_then_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_for(chain("EnvironmentVariableCredentialsProvider"), "eu-west-1")
    use_environment(monkeypatch, "AKLATE")
    first = session.get_credentials()
    use_environment(monkeypatch, "AKLATER")
    assert first is not None
    assert first.access_key == "AKLATE"
    assert session.get_credentials() is first


def test_when_nothing_yields_the_error_names_what_was_tried() -> None:
    text = "EnvironmentVariableCredentialsProvider, ProfileCredentialsProvider|nobody, ContainerCredentialsProvider"
    session = session_for(chain(text), "eu-west-1")
    with pytest.raises(AccessError) as caught:
        session.create_client("kinesis")
    assert str(caught.value) == (
        "no AWS credentials, tried: EnvironmentVariableCredentialsProvider (found nothing); ProfileCredentialsProvider "
        "(The config profile (nobody) could not be found); ContainerCredentialsProvider (found nothing); "
        "see AwsCredentialsProvider in the configuration"
    )
    assert caught.value.exit_code == 3


def test_a_key_without_its_secret_counts_as_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_profiles(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKHALF")
    assert access_key("EnvironmentVariableCredentialsProvider, ProfileCredentialsProvider") == "AKDEFAULT"


def test_a_role_is_assumed_with_the_default_chain_and_renewed(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    use_environment(monkeypatch)
    # five minutes of validity are within botocore's window for a renewal, an hour is not
    lives = iter([("AKROLE1", 5), ("AKROLE2", 5), ("AKROLE3", 60)])

    def respond(path: str, body: str) -> tuple[int, str]:
        key, minutes = next(lives)
        return 200, sts_answer("AssumeRole", key, timedelta(minutes=minutes))

    server.respond = respond
    text = f"StsAssumeRoleCredentialsProvider|{ROLE}|me|externalId=ext|endpoint={server.url}^eu-west-2"
    session = session_for(chain(text), "us-east-1")
    assert server.requests == []
    credentials = session.get_credentials()
    assert credentials is not None
    asked = parse_qs(server.requests[0][3])
    assert (asked["RoleArn"], asked["RoleSessionName"], asked["ExternalId"]) == ([ROLE], ["me"], ["ext"])
    authorization = server.requests[0][2]["authorization"]
    assert "Credential=AKENV/" in authorization
    assert "/eu-west-2/sts/" in authorization
    assert [credentials.get_frozen_credentials().access_key for _ in range(3)] == ["AKROLE3"] * 3
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("nested", "environment", "region"),
    [("|endpointRegion=eu-west-3", "eu-west-2", "eu-west-3"), ("", "eu-west-2", "eu-west-2"), ("", None, "us-east-1")],
)
def test_the_region_of_sts(
    monkeypatch: pytest.MonkeyPatch, server: Server, nested: str, environment: str | None, region: str
) -> None:
    use_environment(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    if environment:
        monkeypatch.setenv("AWS_REGION", environment)
    server.respond = lambda path, body: (200, sts_answer("AssumeRole", "AKROLE", timedelta(hours=1)))
    assert access_key(f"StsAssumeRoleCredentialsProvider|{ROLE}|me{nested}", "us-east-1") == "AKROLE"
    assert f"/{region}/sts/" in server.requests[0][2]["authorization"]


def test_a_refused_role_gives_way_to_the_next_provider_or_is_named(
    monkeypatch: pytest.MonkeyPatch, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    use_environment(monkeypatch)
    server.respond = lambda path, body: (
        403,
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not yours</Message></Error></ErrorResponse>",
    )
    role = f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpoint={server.url}^eu-west-1"
    assert access_key(f"{role}, EnvironmentVariableCredentialsProvider") == "AKENV"
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.__dict__["provider"] == "StsAssumeRoleCredentialsProvider"
    with pytest.raises(AccessError, match=r"StsAssumeRoleCredentialsProvider \(.*AccessDenied.*not yours"):
        access_key(role)


def test_a_role_without_credentials_to_assume_it_with(server: Server) -> None:
    with pytest.raises(AccessError, match="Unable to locate credentials"):
        access_key(f"StsAssumeRoleCredentialsProvider|{ROLE}|me|endpoint={server.url}^eu-west-1")
    assert server.requests == []


def test_web_identity(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token")
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    server.respond = lambda path, body: (200, sts_answer("AssumeRoleWithWebIdentity", "AKWEB", timedelta(hours=1)))
    assert access_key("WebIdentityTokenFileCredentialsProvider") == "AKWEB"
    assert parse_qs(server.requests[0][3])["WebIdentityToken"] == ["a-token"]
    (tmp_path / "token").unlink()
    with pytest.raises(AccessError, match="No such file"):
        access_key("WebIdentityTokenFileCredentialsProvider")


def test_container(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/creds")
    answer = {"AccessKeyId": "AKBOX", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
    server.respond = lambda path, body: (200, json.dumps(answer))
    assert access_key("ContainerCredentialsProvider") == "AKBOX"
    assert server.requests[0][1] == "/creds"


def test_instance_profile(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    answer = {
        "Code": "Success",
        "AccessKeyId": "AKHOST",
        "SecretAccessKey": "s",
        "Token": "t",
        "Expiration": "2099-01-01T00:00:00Z",
    }

    def respond(path: str, body: str) -> tuple[int, str]:
        if path.endswith("/api/token"):
            return 200, "a-token"
        return 200, json.dumps(answer) if path.endswith("/the-role") else "the-role"

    server.respond = respond
    assert access_key("InstanceProfileCredentialsProvider") == "AKHOST"


@pytest.mark.parametrize(
    ("text", "signed_by"),
    [
        ("AnonymousCredentialsProvider", None),
        ("AnonymousCredentialsProvider, EnvironmentVariableCredentialsProvider", None),
        ("EnvironmentVariableCredentialsProvider, AnonymousCredentialsProvider", "AKENV"),
        ("ProfileCredentialsProvider|nobody, AnonymousCredentialsProvider", None),
    ],
)
def test_anonymous_requests_are_unsigned(
    monkeypatch: pytest.MonkeyPatch, server: Server, text: str, signed_by: str | None
) -> None:
    use_environment(monkeypatch)
    server.respond = lambda path, body: (200, '{"StreamNames": [], "HasMoreStreams": false}')
    client = session_for(chain(text), "eu-west-1").create_client("kinesis", endpoint_url=server.url)
    client.list_streams()
    authorization = server.requests[0][2].get("authorization")
    assert (signed_by is None) == (authorization is None)
    assert signed_by is None or f"Credential={signed_by}/" in (authorization or "")


def test_the_region_is_the_default_of_the_sessions_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    use_environment(monkeypatch)
    assert session_for((), "eu-west-2").create_client("dynamodb").meta.region_name == "eu-west-2"


def test_known_regions_are_those_of_every_partition() -> None:
    regions = known_regions()
    assert {"us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1"} <= set(regions)
    assert list(regions) == sorted(regions)
