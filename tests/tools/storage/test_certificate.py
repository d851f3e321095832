import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stitch_tools.errors import CertificateError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.base import canonical_json, sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import ReferenceFacts, SourceFile, Task
from stitch_tools.models.verdict import Bench, Timing
from stitch_tools.storage.certificate import (
    Archive,
    Certificate,
    read_certificate,
    read_contents,
    seal_certificate,
    signed,
    write_certificate,
)
from tests.certificates import draft_certificate


@pytest.fixture
def archive() -> Archive:
    bench = Bench(
        program_id="p", task_id="t", outcome="faster", timings=(Timing(name="program", latency_us=1.25),)
    )
    return seal_certificate(
        draft_certificate(bench), {"program/program.cpp": b"int x;\n", "task/ü.py": "ü".encode()}
    )


def test_a_certificate_comes_back_whole(archive: Archive, tmp_path: Path) -> None:
    write_certificate(archive, tmp_path / "c.zip")
    assert read_certificate(tmp_path / "c.zip") == archive
    assert archive.folder("program") == {"program.cpp": b"int x;\n"}


def test_every_changed_byte_is_seen(archive: Archive, tmp_path: Path) -> None:
    path = tmp_path / "c.zip"
    write_certificate(archive, path)
    data = path.read_bytes()
    generator = random.Random(0)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= generator.randrange(1, 256)
        path.write_bytes(damaged)
        with pytest.raises(CertificateError):
            read_certificate(path)


def test_every_value_that_names_another_kind_of_entry_is_seen(archive: Archive, tmp_path: Path) -> None:
    """Compression methods (8, 12, 14 and later ones) and flags, in every byte that is no entry's content."""
    path = tmp_path / "c.zip"
    write_certificate(archive, path)
    data = path.read_bytes()
    headers = data
    for content in (archive.manifest, *archive.entries.values()):
        headers = headers.replace(content, b"\xff" * len(content))
    places = [index for index, byte in enumerate(headers) if byte != 0xFF]
    assert len(places) < 600
    for index in places:
        for value in {0, 1, 8, 9, 12, 14, 32, 64, 93, 99} - {data[index]}:
            path.write_bytes(data[:index] + bytes([value]) + data[index + 1 :])
            with pytest.raises(CertificateError):
                read_certificate(path)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" + data]
)
def test_a_shorter_or_longer_file_is_seen(
    archive: Archive, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "c.zip"
    write_certificate(archive, path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CertificateError):
        read_certificate(path)


def test_a_certificate_from_before_a_field_was_added_stays_whole(archive: Archive, tmp_path: Path) -> None:
    spelled = json.loads(archive.manifest)
    del spelled["check"]["sensitivity"], spelled["bench"]["message"]
    spelled["certificate_id"] = ""
    spelled["certificate_id"] = sha256_hex(canonical_json(spelled))
    path = tmp_path / "old.zip"
    write_certificate(dataclasses.replace(archive, manifest=canonical_json(spelled)), path)
    read = read_certificate(path)
    assert read.certificate.certificate_id == spelled["certificate_id"]
    assert read.certificate.check == archive.certificate.check
    write_certificate(read, tmp_path / "copy.zip")
    assert (tmp_path / "copy.zip").read_bytes() == path.read_bytes()


def test_a_manifest_that_is_spelled_in_another_way_is_refused(archive: Archive, tmp_path: Path) -> None:
    spelled = json.dumps(json.loads(archive.manifest), sort_keys=True).encode()
    write_certificate(dataclasses.replace(archive, manifest=spelled), tmp_path / "c.zip")
    with pytest.raises(CertificateError, match="manifest"):
        read_certificate(tmp_path / "c.zip")


def test_a_file_may_be_read_by_whom_the_umask_allows(archive: Archive, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_certificate(archive, tmp_path / "c.zip")
    finally:
        os.umask(old)
    assert (tmp_path / "c.zip").stat().st_mode & 0o777 == 0o640


def test_another_file_and_a_missing_one_are_plain_errors(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    for name, kind in (("text", CertificateError), ("absent", UsageError)):
        with pytest.raises(kind) as caught:
            read_certificate(tmp_path / name)
        assert caught.value.hint


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A fresh ed25519 private key."""
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_a_signed_certificate_comes_back_with_its_signature(
    archive: Archive, key_file: Path, tmp_path: Path
) -> None:
    certified = signed(archive, key_file)
    write_certificate(certified, tmp_path / "c.zip")
    assert read_certificate(tmp_path / "c.zip") == certified
    assert certified.signature is not None


def test_every_changed_byte_of_a_signed_certificate_is_seen(
    archive: Archive, key_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "c.zip"
    write_certificate(signed(archive, key_file), path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        with pytest.raises(CertificateError):
            read_certificate(path)


def test_a_signature_over_another_certificate_is_refused(
    archive: Archive, key_file: Path, tmp_path: Path
) -> None:
    other = seal_certificate(archive.certificate, {"program/program.cpp": b"int y;\n"})
    path = tmp_path / "c.zip"
    write_certificate(dataclasses.replace(other, signature=signed(archive, key_file).signature), path)
    with pytest.raises(CertificateError, match="signature"):
        read_certificate(path)


def test_a_file_that_is_no_ed25519_key_is_refused(archive: Archive, tmp_path: Path) -> None:
    wrong = tmp_path / "key.pem"
    wrong.write_text("no key", encoding="utf-8")
    with pytest.raises(UsageError, match="ed25519"):
        signed(archive, wrong)


@pytest.fixture
def whole(archive: Archive) -> dict[str, bytes]:
    """The entries of a certificate that lacks nothing."""

    def files(folder: str) -> tuple[SourceFile, ...]:
        rows = archive.folder(folder).items()
        return tuple(SourceFile(path=path, sha256=sha256_hex(data), size=len(data)) for path, data in rows)

    task = Task(name="t", files=files("task"), main="ü.py")
    program = Program(format="native", target="cpu", files=files("program"), main="program.cpp")
    facts = ReferenceFacts(inputs=(), outputs=(), output_structure='"leaf"', parameters=())
    facts_of = {"task": task, "program": program, "facts": facts}
    return {
        **archive.entries,
        **{f"{name}.json": fact.canonical_json() for name, fact in facts_of.items()},
    }


def test_what_a_certificate_is_about_comes_out_of_it(
    archive: Archive, whole: dict[str, bytes], tmp_path: Path
) -> None:
    found = read_contents(seal_certificate(archive.certificate, whole), tmp_path / "c.zip")
    assert (found.task.main, found.program.main, found.facts.outputs) == ("ü.py", "program.cpp", ())


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("task.json", None, "lacks task.json"),
        ("program.json", None, "lacks program.json"),
        ("facts.json", None, "lacks facts.json"),
        ("program/program.cpp", None, "lacks program/program.cpp"),
        ("task/ü.py", None, "lacks task/ü.py"),
        ("program.json", b"{}", "program.json is no Program"),
        ("facts.json", b"\xff", "facts.json is no ReferenceFacts"),
        ("program/program.cpp", b"int y;\n", "program/program.cpp is not the file that program.json names"),
    ],
)
def test_a_certificate_in_good_order_says_what_it_lacks(
    archive: Archive, whole: dict[str, bytes], tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    rest = {path: content for path, content in whole.items() if path != name}
    entries = rest if data is None else {**rest, name: data}
    path = tmp_path / "c.stitch.zip"
    write_certificate(seal_certificate(archive.certificate, entries), path)
    with pytest.raises(CertificateError) as caught:
        read_contents(read_certificate(path), path)
    assert words in caught.value.message


def test_a_certificate_of_a_version_without_policies_is_read_with_the_strict_one(tmp_path: Path) -> None:
    spelled = json.loads(draft_certificate().canonical_json())
    del spelled["policy"]
    sealed = {**spelled, "certificate_id": sha256_hex(canonical_json({**spelled, "certificate_id": ""}))}
    old = Archive(Certificate.model_validate(sealed), {}, canonical_json(sealed))
    write_certificate(old, tmp_path / "c.zip")
    found = read_certificate(tmp_path / "c.zip")
    assert (found.certificate.policy, found.manifest) == (AcceptPolicy(), old.manifest)
