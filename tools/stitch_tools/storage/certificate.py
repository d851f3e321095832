"""The certificate: one portable archive with all that is needed to repeat an accepted result.

It is a ZIP of stored (uncompressed) entries in a canonical form: fixed order, times and attributes. Verifying
reads the entries, checks every hash, writes the archive anew in memory and compares it byte by byte with the
file, so that no byte of it can change unseen. This shows that nothing is damaged, and nothing more: who made
the archive, and whether its figures are true, only a re-run can tell. A signature, where there is one, covers
the manifest's id and with it every byte.
"""

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from stitch_tools.errors import CertificateError, StoreError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import Fact, canonical_json, sha256_hex
from stitch_tools.models.environment import Environment
from stitch_tools.models.program import Program
from stitch_tools.models.task import ReferenceFacts, SourceFile, Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.signature import Signature, sign_certificate, verify_signature
from stitch_tools.storage.store import checked_path, write_atomically

SCHEMA_VERSION = 1
MAX_ARCHIVE_BYTES = 256 << 20
_MANIFEST = "certificate.json"
_SIGNATURE = "signature.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Certificate(Fact):
    """The archive's manifest."""

    schema_version: int = SCHEMA_VERSION
    certificate_id: str = ""
    """Hash of this manifest with this field empty."""
    created_at: str
    """UTC, ISO 8601."""
    run_id: str
    task_id: str
    program_id: str
    target: str
    """`cpu` or `cuda:sm_90`."""
    check: Check
    """The correctness evidence."""
    bench: Bench | None
    """The timing, or None where nothing was timed."""
    policy: AcceptPolicy = AcceptPolicy()
    """Which shortcomings of the program were accepted when it was certified; in older certificates none."""
    environment: Environment
    files: tuple[SourceFile, ...]
    """Every other entry of the archive, sorted by path."""
    not_checked: tuple[str, ...] = ()
    """What this result does not show, in plain words."""
    claim: str = "What is in this archive is undamaged; only a re-run shows that it is true."


@dataclass(frozen=True)
class Archive:
    """A certificate with its entries' content by path."""

    certificate: Certificate
    entries: Mapping[str, bytes]
    manifest: bytes
    """The certificate as it is spelled in the archive: an older version knew fewer fields."""
    signature: Signature | None = None

    def folder(self, prefix: str) -> dict[str, bytes]:
        """The entries below `prefix/`, by the rest of their path."""
        start = prefix + "/"
        return {path[len(start) :]: data for path, data in self.entries.items() if path.startswith(start)}


@dataclass(frozen=True)
class Contents:
    """What a certificate is about; the files that task and program name lie in the archive."""

    task: Task
    program: Program
    facts: ReferenceFacts


def read_contents(archive: Archive, path: Path) -> Contents:
    """Task, program and facts of the archive that was read from `path`.

    Raises:
        CertificateError: one of them, or a file that one of them names, is missing or cannot be read.
    """
    found = Contents(
        task=_entry(archive, "task.json", Task, path),
        program=_entry(archive, "program.json", Program, path),
        facts=_entry(archive, "facts.json", ReferenceFacts, path),
    )
    for folder, files in (("task", found.task.files), ("program", found.program.files)):
        for file in files:
            name = f"{folder}/{file.path}"
            if name not in archive.entries:
                raise CertificateError(f"{path} lacks {name}", hint=_INCOMPLETE_HINT)
            if sha256_hex(archive.entries[name]) != file.sha256:
                raise CertificateError(
                    f"{path}: {name} is not the file that {folder}.json names", hint=_INCOMPLETE_HINT
                )
    return found


def seal_certificate(draft: Certificate, entries: Mapping[str, bytes]) -> Archive:
    """The certificate with its file list and id filled in, together with its entries."""
    files = tuple(
        SourceFile(path=path, sha256=sha256_hex(data), size=len(data))
        for path, data in sorted(entries.items())
    )
    unsigned = draft.model_copy(update={"files": files, "certificate_id": ""})
    sealed = unsigned.model_copy(update={"certificate_id": sha256_hex(unsigned.canonical_json())})
    return Archive(sealed, dict(sorted(entries.items())), sealed.canonical_json())


def signed(archive: Archive, key_file: Path) -> Archive:
    """The archive with a signature made with the ed25519 private key in a PEM file; it replaces an older one.

    Raises:
        UsageError: the file is no such key.
        EnvironmentMissingError: the package `cryptography` is not installed.
    """
    signature = sign_certificate(archive.certificate.certificate_id, key_file)
    return replace(archive, signature=signature)


def write_certificate(archive: Archive, path: Path) -> None:
    """Write the archive to `path`, atomically.

    Raises:
        StoreError: the folder cannot be written.
    """
    write_atomically(path, _serialize(archive))


def read_certificate(path: Path) -> Archive:
    """The archive at `path`, fully verified.

    Raises:
        UsageError: there is no such file.
        CertificateError: it cannot be read, is not a certificate, is damaged, or is from a newer version.
        EnvironmentMissingError: it is signed, and the package `cryptography` is not installed.
    """
    if not path.is_file():
        raise UsageError(f"there is no certificate at {path}", hint=_HINT)
    try:
        if path.stat().st_size > MAX_ARCHIVE_BYTES:
            raise CertificateError(f"{path} is too large for a certificate", hint="is it the right file?")
        data = path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}", hint="check the path") from error
    entries = _read_entries(data, path)
    manifest = entries.pop(_MANIFEST, None)
    if manifest is None:
        raise CertificateError(f"{path} has no {_MANIFEST}", hint="a certificate ends in .stitch.zip")
    certificate = _parse_manifest(manifest, path)
    signature = _parse_signature(entries.pop(_SIGNATURE, None), path)
    _compare_files(certificate, entries, path)
    archive = Archive(certificate, entries, manifest, signature)
    if _serialize(archive) != data:
        raise CertificateError(f"{path} is damaged: bytes outside its files were changed", hint=_DAMAGED_HINT)
    if signature is not None:
        verify_signature(signature, certificate.certificate_id)
    return archive


_HINT = "name a .stitch.zip; `stitch-mcp certify RUN --output FILE` writes that of a run"
_DAMAGED_HINT = "get an undamaged copy, or solve again"
_INCOMPLETE_HINT = "it was not written by stitch-mcp, or by a newer one: get another copy, or solve again"
_FactT = TypeVar("_FactT", bound=Fact)


def _entry(archive: Archive, name: str, kind: type[_FactT], path: Path) -> _FactT:
    if name not in archive.entries:
        raise CertificateError(f"{path} lacks {name}", hint=_INCOMPLETE_HINT)
    try:
        return kind.from_json_bytes(archive.entries[name])
    except ValueError as error:
        raise CertificateError(
            f"{path}: {name} is no {kind.__name__} that this version can read", hint=_INCOMPLETE_HINT
        ) from error


def _read_entries(data: bytes, path: Path) -> dict[str, bytes]:
    if not data.startswith(b"PK"):  # as every zip archive does
        raise CertificateError(f"{path} is not a certificate", hint=_HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            infos = archive.infolist()
            is_stored = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
            size = sum(info.file_size for info in infos)
            if len(set(names)) != len(names) or not is_stored or size > len(data):
                raise CertificateError(f"{path} is damaged: its directory is wrong", hint=_DAMAGED_HINT)
            return {checked_path(name): archive.read(name) for name in names}
    except StoreError as error:
        raise CertificateError(
            f"{path} names a file outside itself: {error.message}", hint=_DAMAGED_HINT
        ) from error
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        struct.error,
        EOFError,
        ValueError,
        OSError,
    ) as error:
        # zipfile answers damage with several types, depending on which byte was hit.
        raise CertificateError(
            f"{path} is damaged or not a certificate: {error}", hint=_DAMAGED_HINT
        ) from error


def _parse_manifest(manifest: bytes, path: Path) -> Certificate:
    try:
        certificate = Certificate.from_json_bytes(manifest)
    except ValueError as error:
        raise CertificateError(
            f"the manifest of {path} does not fit schema {SCHEMA_VERSION}",
            hint="update stitch-mcp, or solve again",
        ) from error
    # The id is that of the manifest's own bytes, not of our model, which may have gained fields since.
    spelled = json.loads(manifest)
    unsigned = canonical_json({**spelled, "certificate_id": ""})
    if canonical_json(spelled) != manifest or sha256_hex(unsigned) != certificate.certificate_id:
        raise CertificateError(f"{path} is damaged: its manifest does not fit its id", hint=_DAMAGED_HINT)
    return certificate


def _parse_signature(data: bytes | None, path: Path) -> Signature | None:
    try:
        return None if data is None else Signature.from_json_bytes(data)
    except ValueError as error:
        raise CertificateError(
            f"{path} is damaged: its signature is no signature", hint=_DAMAGED_HINT
        ) from error


def _compare_files(certificate: Certificate, entries: Mapping[str, bytes], path: Path) -> None:
    expected = {file.path: file.sha256 for file in certificate.files}
    actual = {name: sha256_hex(data) for name, data in entries.items()}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            raise CertificateError(f"{path} is damaged: {name} does not fit the manifest", hint=_DAMAGED_HINT)


def _serialize(certified: Archive) -> bytes:
    buffer = io.BytesIO()
    entries = [(_MANIFEST, certified.manifest), *sorted(certified.entries.items())]
    if certified.signature is not None:
        entries.append((_SIGNATURE, certified.signature.canonical_json()))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            info = zipfile.ZipInfo(name, date_time=_EPOCH)
            info.create_system = 3
            info.create_version = info.extract_version = 20
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()
