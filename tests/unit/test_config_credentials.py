"""The grammar of the credentials keys (spec configuration 3.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_host.config.credentials import SUPPORTED, mask_chain, parse_chain
from kcl_host.config.settings import CredentialsProvider

ROLE = "arn:aws:iam::111122223333:role/kcl"


def names(text: str) -> list[str]:
    chain = parse_chain(text)
    assert chain.errors == ()
    return [provider.name for provider in chain.providers]


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_names_of_sdk_v2(name: str) -> None:
    text = f"{name}|{ROLE}|session" if name.startswith("Sts") else name
    assert names(text) == [name]
    assert names(f"software.amazon.awssdk.auth.credentials.{text}") == [name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("DefaultAWSCredentialsProviderChain", ["DefaultCredentialsProvider"]),
        ("com.amazonaws.auth.DefaultAWSCredentialsProviderChain", ["DefaultCredentialsProvider"]),
        ("com.amazonaws.auth.EnvironmentVariableCredentialsProvider", ["EnvironmentVariableCredentialsProvider"]),
        ("SystemPropertiesCredentialsProvider", ["SystemPropertyCredentialsProvider"]),
        ("com.amazonaws.auth.profile.ProfileCredentialsProvider|p", ["ProfileCredentialsProvider"]),
        ("com.amazonaws.auth.InstanceProfileCredentialsProvider", ["InstanceProfileCredentialsProvider"]),
        (
            "EC2ContainerCredentialsProviderWrapper",
            ["ContainerCredentialsProvider", "InstanceProfileCredentialsProvider"],
        ),
        ("WebIdentityTokenCredentialsProvider", ["WebIdentityTokenFileCredentialsProvider"]),
        (f"STSAssumeRoleSessionCredentialsProvider|{ROLE}|s", ["StsAssumeRoleCredentialsProvider"]),
    ],
)
def test_the_names_of_sdk_v1_are_aliases_with_a_warning(typed: str, meant: list[str]) -> None:
    assert names(typed) == meant
    assert "v1, which KCL 3 refuses" in parse_chain(typed).warnings[0]


def test_the_roles_other_names() -> None:
    for typed in ("KclStsAssumeRoleCredentialsProvider",
                  "software.amazon.kinesis.multilang.auth.KclStsAssumeRoleCredentialsProvider",
                  "software.amazon.awssdk.services.sts.auth.StsAssumeRoleCredentialsProvider"):  # fmt: skip
        assert names(f"{typed}|{ROLE}|s") == ["StsAssumeRoleCredentialsProvider"]


def test_a_chain_keeps_its_order_and_drops_empty_items() -> None:
    assert names(" ,AnonymousCredentialsProvider,, ProfileCredentialsProvider | me ,") == [
        "AnonymousCredentialsProvider",
        "ProfileCredentialsProvider",
    ]


def test_a_role_with_everything() -> None:
    text = (
        f"StsAssumeRoleCredentialsProvider|{ROLE}|kcl-session|externalId=abc|endpoint=sts.eu-west-2.amazonaws.com^eu-west-2"
        ", DefaultCredentialsProvider"
    )
    chain = parse_chain(text, ["eu-west-2"])
    assert (chain.errors, chain.warnings) == ((), ())
    assert chain.providers == (
        CredentialsProvider(
            name="StsAssumeRoleCredentialsProvider",
            arguments=(ROLE, "kcl-session"),
            nested={
                "externalId": "abc",
                "endpoint": "https://sts.eu-west-2.amazonaws.com",
                "endpointRegion": "eu-west-2",
            },
        ),
        CredentialsProvider(name="DefaultCredentialsProvider"),
    )


@pytest.mark.parametrize(
    ("argument", "nested", "said"),
    [
        ("endpointRegion=eu-west-1", {"endpointRegion": "eu-west-1"}, None),
        ("endpointRegion=eu-wst-1", {"endpointRegion": "eu-wst-1"}, "did you mean eu-west-1?"),
        ("endpoint=http://h:1^eu-west-1", {"endpoint": "http://h:1", "endpointRegion": "eu-west-1"}, None),
        ("externalId=a=b", {"externalId": "a"}, "second '='"),
        ("externalId=a=", {"externalId": "a"}, None),
        ("externalId=", {}, "without a value"),
        ("ExternalId=a", {}, "none of endpointRegion, endpoint, externalId"),
        ("whatever", {}, "none of endpointRegion, endpoint, externalId"),
    ],
)  # fmt: skip
def test_nested_keys_of_a_role(argument: str, nested: dict[str, str], said: str | None) -> None:
    chain = parse_chain(f"StsAssumeRoleCredentialsProvider|{ROLE}|s|{argument}", ["eu-west-1"])
    assert chain.errors == ()
    assert chain.providers[0].nested == nested
    assert [said in warning for warning in chain.warnings] == [True] if said else chain.warnings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("StsAssumeRoleCredentialsProvider", "needs a role ARN and a session name"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}", "needs a role ARN and a session name"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|externalId=x", "needs a role ARN and a session name"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|s|endpoint=https://x", "must be URL^REGION"),
        (f"StsAssumeRoleCredentialsProvider|{ROLE}|s|endpoint=https://x^a^b", "must be URL^REGION"),
        ("StaticCredentialsProvider|ak|sk", "unknown credentials provider StaticCredentialsProvider"),
        ("ProcessCredentialsProvider", "unknown credentials provider ProcessCredentialsProvider"),
        ("defaultcredentialsprovider", "supported are DefaultCredentialsProvider, "),
        ("DefaultCredentialProvider", "did you mean DefaultCredentialsProvider?"),
        ("com.example.auth.VaultProvider", "the Java class com.example.auth.VaultProvider cannot be loaded"),
        ("", "no credentials provider is named"),
        (" , ", "no credentials provider is named"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(text: str, said: str) -> None:
    (error,) = parse_chain(text).errors
    assert said in error


def test_surplus_arguments_and_the_jvms_properties_are_warned_about() -> None:
    assert parse_chain("DefaultCredentialsProvider|x|y").warnings == (
        "DefaultCredentialsProvider takes no arguments; the rest is ignored",
    )
    assert parse_chain("ProfileCredentialsProvider|p|y").providers[0].arguments == ("p",)
    assert "finds nothing here" in parse_chain("SystemPropertyCredentialsProvider").warnings[0]


def test_the_mask_keeps_names_only() -> None:
    text = f"StsAssumeRoleCredentialsProvider|{ROLE}|s|externalId=x|y, AKIAEXAMPLE, ProfileCredentialsProvider|p"
    assert mask_chain(text) == (
        "StsAssumeRoleCredentialsProvider|***|***|externalId=***|***, ***, ProfileCredentialsProvider|***"
    )


def test_a_provider_shows_its_name_only() -> None:
    provider = CredentialsProvider(
        name="ProfileCredentialsProvider", arguments=("hidden",), nested={"externalId": "hidden"}
    )
    assert "hidden" not in f"{provider!r} {provider.__rich_repr__()}"


@given(st.text(alphabet="SECRT|,=^ x", max_size=40))
def test_no_argument_ever_shows(text: str) -> None:
    chain = parse_chain(f"StsAssumeRoleCredentialsProvider|{text}")
    shown = " ".join([*chain.errors, *chain.warnings, mask_chain(text)])
    assert "SECRT" not in shown
