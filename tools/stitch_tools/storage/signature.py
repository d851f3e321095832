"""Ed25519 signatures of certificates: who vouches for an archive. Needs the extra `stitch-mcp[sign]`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import StringConstraints

from stitch_tools.errors import CertificateError, EnvironmentMissingError, UsageError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.storage.small_file import read_small

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# What is signed begins with its purpose, so that a signature never means anything elsewhere.
_PURPOSE = b"stitch-mcp certificate 1\n"
_INSTALL = "pip install 'stitch-mcp[sign]'"
# One spelling only: otherwise a byte of the archive could change without anybody noticing.
_Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class Signature(Fact):
    """A signature over a certificate's id, which in turn covers every byte of its archive."""

    algorithm: Literal["ed25519"] = "ed25519"
    public_key: _Hex32
    """The signer's raw public key, 64 hexadecimal digits."""
    signature: _Hex64
    """128 hexadecimal digits."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the raw public key, its first 16 hexadecimal digits: for people to compare."""
        return sha256_hex(bytes.fromhex(self.public_key))[:16]


def sign_certificate(certificate_id: str, key_file: Path) -> Signature:
    """The signature of a certificate's id with the private key in a PEM file.

    Raises:
        UsageError: the file is no unencrypted ed25519 private key.
        EnvironmentMissingError: the package `cryptography` is not installed.
    """
    key = _private_key(key_file)
    public = key.public_key().public_bytes_raw()
    return Signature(public_key=public.hex(), signature=key.sign(_message(certificate_id)).hex())


def verify_signature(signature: Signature, certificate_id: str) -> None:
    """Return where the signature fits the id.

    Raises:
        CertificateError: it does not.
        EnvironmentMissingError: the package `cryptography` is not installed.
    """
    _need_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        key.verify(bytes.fromhex(signature.signature), _message(certificate_id))
    except (InvalidSignature, ValueError) as error:
        raise CertificateError(
            "the signature does not fit the certificate", hint="get an undamaged copy from its signer"
        ) from error


def public_key_hex(key_file: Path) -> str:
    """The raw key of a PEM file with an ed25519 public key, as hexadecimal digits.

    Raises:
        UsageError: the file is no such key.
        EnvironmentMissingError: the package `cryptography` is not installed.
    """
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(key_file))
    except ValueError as error:
        raise _wrong_key(key_file, "public") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _wrong_key(key_file, "public")
    return key.public_bytes_raw().hex()


def _private_key(key_file: Path) -> "Ed25519PrivateKey":
    _need_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(key_file), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key has a password
        raise _wrong_key(key_file, "private") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _wrong_key(key_file, "private")
    return key


def _message(certificate_id: str) -> bytes:
    return _PURPOSE + certificate_id.encode("ascii")


def _read(path: Path) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}", hint="check the path") from error


def _wrong_key(path: Path, kind: str) -> UsageError:
    make = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"
    return UsageError(f"{path} is no ed25519 {kind} key in an unencrypted PEM file", hint=f"make one: {make}")


def _need_cryptography() -> None:
    import importlib.util

    if importlib.util.find_spec("cryptography") is None:
        raise EnvironmentMissingError("signatures need the package `cryptography`", hint=_INSTALL)
