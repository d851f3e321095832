"""What in an environment is secret: kept from jobs' processes, and blotted out of what others read."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NAME = re.compile(
    r"(^|_)(KEY|PAT|AUTH|COOKIE|DSN)S?($|_)"
    r"|(APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIAL|WEBHOOK)S?($|_)"
    # Not a bypass, a compass, or the program that asks for a password.
    r"|(?<!BY)(?<!COM)(?<!ASK)PASS($|_)",
    re.IGNORECASE,
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""Where a shell notes its folders."""
_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_FEWEST_CHARS = 8
"""A shorter value is as likely a word of ordinary text."""


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Secret values with the name of the variable that each comes from, the longest first."""
    secrets: dict[str, str] = {}
    for name, value in environ.items():
        # Other variables may hold a password inside an address, as proxies and database URLs do.
        for secret in _parts(value) if _is_secret(name) else _IN_ADDRESS.findall(value):
            # As it stands, and as JSON writes it.
            for spelled in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
                if len(secret) >= _FEWEST_CHARS:
                    secrets[spelled] = name
    # Longest first: replacing a short secret inside a longer one would leave the rest of the longer one
    # readable.
    return dict(sorted(secrets.items(), key=lambda item: -len(item[0])))


# The same names come with every answer.
@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return name not in _FOLDERS and _NAME.search(name) is not None


def _parts(value: str) -> list[str]:
    """The value and each of its lines, which others quote alone; a newline may be written out, too."""
    return [value, *(line.strip() for line in value.replace("\\n", "\n").splitlines())]


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables whose names say that they hold a secret."""
    return {name: value for name, value in environ.items() if not _is_secret(name)}


def blot(value: Any, secrets: Mapping[str, str]) -> Any:
    """The JSON value with every secret in its strings replaced by the name of its variable."""
    if isinstance(value, str):
        for secret, name in secrets.items():
            value = value.replace(secret, f"<{name}>")
        return value
    if isinstance(value, list):
        return [blot(item, secrets) for item in value]  # pyright: ignore[reportUnknownVariableType] # JSON
    if isinstance(value, dict):
        return {key: blot(item, secrets) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType] # JSON
    return value
