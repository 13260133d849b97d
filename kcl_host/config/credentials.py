"""The value of the credentials keys: a chain of providers (spec configuration 3.3).

    value := item ("," item)*      item := name ("|" argument)*

Names are the classes of the Java SDK v2, with or without package; those of SDK v1 are taken as aliases. Arguments are
secret: no message here repeats one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Final

import msgspec

from kcl_host.config.settings import CredentialsProvider

DEFAULT: Final = "DefaultCredentialsProvider"
ENVIRONMENT: Final = "EnvironmentVariableCredentialsProvider"
SYSTEM_PROPERTY: Final = "SystemPropertyCredentialsProvider"
PROFILE: Final = "ProfileCredentialsProvider"
WEB_IDENTITY: Final = "WebIdentityTokenFileCredentialsProvider"
CONTAINER: Final = "ContainerCredentialsProvider"
INSTANCE_PROFILE: Final = "InstanceProfileCredentialsProvider"
ANONYMOUS: Final = "AnonymousCredentialsProvider"
ASSUME_ROLE: Final = "StsAssumeRoleCredentialsProvider"

SUPPORTED: Final = (
    DEFAULT, ENVIRONMENT, SYSTEM_PROPERTY, PROFILE, WEB_IDENTITY, CONTAINER, INSTANCE_PROFILE, ANONYMOUS, ASSUME_ROLE,
)  # fmt: skip
_MAX_ARGUMENTS: Final = {PROFILE: 1}

# name of SDK v1 -> what it did, in names of v2
_V1: Final = {
    "DefaultAWSCredentialsProviderChain": (DEFAULT,),
    "EnvironmentVariableCredentialsProvider": (ENVIRONMENT,),
    "SystemPropertiesCredentialsProvider": (SYSTEM_PROPERTY,),
    "ProfileCredentialsProvider": (PROFILE,),
    "InstanceProfileCredentialsProvider": (INSTANCE_PROFILE,),
    "EC2ContainerCredentialsProviderWrapper": (CONTAINER, INSTANCE_PROFILE),
    "WebIdentityTokenCredentialsProvider": (WEB_IDENTITY,),
    "STSAssumeRoleSessionCredentialsProvider": (ASSUME_ROLE,),
}
_V1_PACKAGES: Final = ("com.amazonaws.auth", "com.amazonaws.auth.profile")
_V2_PACKAGES: Final = (
    "software.amazon.kinesis.multilang.auth",
    "software.amazon.awssdk.auth.credentials",
    "software.amazon.awssdk.services.sts.auth",
)
_NESTED_KEYS: Final = ("endpointRegion", "endpoint", "externalId")


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """`errors` make a run impossible; all texts are free of secrets."""

    providers: tuple[CredentialsProvider, ...] = ()
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Refused(Exception):
    """A provider that cannot be used, and why."""


def parse_chain(text: str, known_regions: Collection[str] = ()) -> Chain:
    """The chain that a value describes, in order. Never raises.

    `known_regions` empty: region names are not checked.
    """
    providers: list[CredentialsProvider] = []
    errors: list[str] = []
    warnings: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        typed, *arguments = (part.strip() for part in item.split("|"))
        try:
            for name in _names(typed, warnings):
                providers.append(_provider(name, arguments, warnings, known_regions))
        except _Refused as refused:
            errors.append(str(refused))
    if not providers and not errors:
        errors.append(f"no credentials provider is named; write for example {DEFAULT}")
    if any(p.name == SYSTEM_PROPERTY for p in providers):
        warnings.append(f"{SYSTEM_PROPERTY} reads properties of a Java process and finds nothing here")
    return Chain(providers=tuple(providers), errors=tuple(errors), warnings=tuple(warnings))


def mask_chain(text: str) -> str:
    """The value with names only: what follows a `|` is hidden, and so is a name that looks like no provider."""
    items = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        typed, *arguments = (part.strip() for part in item.split("|"))
        items.append("|".join([_shown(typed), *map(_masked_argument, arguments)]))
    return ", ".join(items)


def _shown(name: str) -> str:
    return name if re.fullmatch(r"[\w.$]*(Provider|ProviderChain|Wrapper)", name) else "***"


def _masked_argument(argument: str) -> str:
    name, equals, _ = argument.partition("=")
    return f"{name}=***" if equals and name in _NESTED_KEYS else "***"


def _names(typed: str, warnings: list[str]) -> tuple[str, ...]:
    """The v2 names that a typed class name stands for."""
    package, _, name = typed.rpartition(".")
    if package in ("", *_V2_PACKAGES):
        if name == f"Kcl{ASSUME_ROLE}":
            return (ASSUME_ROLE,)
        if name in SUPPORTED:
            return (name,)
    if package in ("", *_V1_PACKAGES) and name in _V1:
        names = _V1[name]
        warnings.append(f"{name} is of the AWS SDK for Java v1, which KCL 3 refuses; write {', '.join(names)}")
        return names
    supported = f"supported are {', '.join(SUPPORTED)}"
    if package and _shown(typed) == typed:
        raise _Refused(f"the Java class {typed} cannot be loaded; {supported}")
    close = difflib.get_close_matches(name, SUPPORTED, n=1, cutoff=0.85)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise _Refused(f"unknown credentials provider {_shown(typed)}{hint}; {supported}")


def _provider(
    name: str, arguments: list[str], warnings: list[str], known_regions: Collection[str]
) -> CredentialsProvider:
    if name == ASSUME_ROLE:
        return _assume_role(arguments, warnings, known_regions)
    most = _MAX_ARGUMENTS.get(name, 0)
    if len(arguments) > most:
        warnings.append(f"{name} takes {most or 'no'} argument{'' if most == 1 else 's'}; the rest is ignored")
    return CredentialsProvider(name=name, arguments=tuple(filter(None, arguments[:most])))


def _assume_role(arguments: list[str], warnings: list[str], known_regions: Collection[str]) -> CredentialsProvider:
    session_name = arguments[1] if len(arguments) > 1 else ""
    if not arguments[:1] or not arguments[0] or not session_name or session_name.partition("=")[0] in _NESTED_KEYS:
        raise _Refused(f"{ASSUME_ROLE} needs a role ARN and a session name: {ASSUME_ROLE}|arn:aws:iam::...|name")
    nested: dict[str, str] = {}
    for argument in arguments[2:]:
        key, *values = argument.split("=")
        if key not in _NESTED_KEYS:
            known = ", ".join(_NESTED_KEYS)
            warnings.append(f"{ASSUME_ROLE}: an argument that is none of {known} (as KEY=VALUE) is ignored")
            continue
        if not values or not values[0]:
            warnings.append(f"{ASSUME_ROLE}: {key} without a value is ignored")
            continue
        if any(values[1:]):
            warnings.append(f"{ASSUME_ROLE}: {key} has a second '='; what follows it is ignored")
        if key == "endpoint":
            nested |= _sts_endpoint(values[0])
        else:
            nested[key] = values[0]
    region = nested.get("endpointRegion")
    if region and known_regions and region not in known_regions:
        warnings.append(
            f"{ASSUME_ROLE}: endpointRegion {region!r} is not a known region{near_region(region, known_regions)}"
        )
    return CredentialsProvider(name=ASSUME_ROLE, arguments=tuple(arguments[:2]), nested=nested)


def _sts_endpoint(value: str) -> dict[str, str]:
    url, *regions = value.split("^")
    if not url or len(regions) != 1 or not regions[0]:
        raise _Refused(
            f"{ASSUME_ROLE}: endpoint must be URL^REGION, for example https://sts.eu-west-1.amazonaws.com^eu-west-1"
        )
    return {"endpoint": url if "://" in url else f"https://{url}", "endpointRegion": regions[0]}


def near_region(region: str, known_regions: Collection[str]) -> str:
    """`; did you mean X?`, or nothing."""
    close = difflib.get_close_matches(region.lower(), sorted(known_regions), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
