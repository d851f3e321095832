"""`certify` as a user runs it: a re-run confirms what is true, and refutes what was made up."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import SourceFile
from stitch_tools.models.verdict import Bench, Ratio
from stitch_tools.storage.certificate import (
    Archive,
    Certificate,
    read_certificate,
    seal_certificate,
    write_certificate,
)
from tests.mcp.cli_support import call
from tests.mcp.conftest import SolvedRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(solved_run: SolvedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one solved run."""
    return shutil.copytree(solved_run.workspace, tmp_path_factory.mktemp("certify") / "copy")


@pytest.fixture(scope="module")
def certified(solved_run: SolvedRun) -> Archive:
    """The run's certificate."""
    return read_certificate(Path(solved_run.result["certificate"]))


def forged(
    archive: Archive, path: Path, *, bench: Bench | None = None, entries: dict[str, bytes] | None = None
) -> str:
    """A certificate in good order that claims something else; its path."""
    draft: Certificate = archive.certificate
    if bench is not None:
        draft = draft.model_copy(update={"bench": bench})
    write_certificate(seal_certificate(draft, {**archive.entries, **(entries or {})}), path)
    return str(path)


def timed(archive: Archive, **changes: object) -> Bench:
    """The certificate's timing with `changes` and a speedup that no program has."""
    bench = archive.certificate.bench
    assert bench is not None
    made_up = Ratio(baseline="eager", speedup=1e4, low=0.9e4, high=1.1e4, outcome="faster")
    return bench.model_copy(update={"ratios": (made_up,), **changes})


@pytest.mark.exhaustive  # a re-run that checks alone is below
def test_a_rerun_builds_checks_and_times_again(certified: Archive, workspace: Path) -> None:
    code, found = call(workspace, "certify", "--verify", "--rerun", "--quick")
    again = found["rerun"]
    assert again["correct"] is True
    assert again["check"]["status"] == "accepted"
    assert again["check"]["program_id"] == certified.certificate.program_id
    assert code == (4 if again["speedup"] == "not_confirmed" else 0)


@pytest.mark.exhaustive  # test_rerun.py compares without running
def test_a_speedup_that_was_made_up_is_not_confirmed(
    certified: Archive, workspace: Path, tmp_path: Path
) -> None:
    path = forged(certified, tmp_path / "fast.stitch.zip", bench=timed(certified))
    assert call(workspace, "certify", "--verify", path)[0] == 0, "in itself it is in good order"
    code, found = call(workspace, "certify", "--verify", "--rerun", "--quick", path)
    again = found["rerun"]
    was_timed = any(row["baseline"] == "eager" for row in again["bench"]["ratios"])
    # On a machine too busy for any timing nothing is compared, and nothing is confirmed either.
    assert (code, again["speedup"]) == ((4, "not_confirmed") if was_timed else (0, "not_compared"))
    assert again["correct"] is True


@pytest.mark.exhaustive
def test_on_another_device_correctness_alone_is_proven(
    certified: Archive, workspace: Path, tmp_path: Path
) -> None:
    bench = timed(certified, device="another CPU")
    path = forged(certified, tmp_path / "other.stitch.zip", bench=bench)
    code, found = call(workspace, "certify", "--verify", "--rerun", "--quick", path)
    assert (code, found["rerun"]["speedup"], found["rerun"]["correct"]) == (0, "not_compared", True)


def test_a_wrong_program_under_a_good_certificate_is_found(
    certified: Archive, workspace: Path, tmp_path: Path
) -> None:
    program = Program.from_json_bytes(certified.entries["program.json"])
    text = certified.entries[f"program/{program.main}"].decode()
    wrong = text.replace("stitch_forward(", "stitch_forward_unused(", 1).encode()
    wrong += b"""
extern "C" int stitch_forward(void*, StitchForwardArgs*) { return 0; }
"""
    files = tuple(
        SourceFile(path=file.path, sha256=sha256_hex(wrong), size=len(wrong))
        if file.path == program.main
        else file
        for file in program.files
    )
    changed = program.model_copy(update={"files": files})
    path = forged(
        certified,
        tmp_path / "wrong.stitch.zip",
        entries={"program.json": changed.canonical_json(), f"program/{program.main}": wrong},
    )
    assert call(workspace, "certify", "--verify", path)[0] == 0
    code, found = call(workspace, "certify", "--verify", "--rerun", "--quick", path)
    assert (code, found["rerun"]["correct"], found["rerun"]["speedup"]) == (3, False, "not_compared")


def test_a_signature_names_its_key_and_another_key_is_refused(
    certified: Archive, workspace: Path, tmp_path: Path
) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    secret, public, foreign = (tmp_path / name for name in ("key.pem", "key.pub", "other.pub"))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for path, owner in ((public, key), (foreign, other)):
        path.write_bytes(owner.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    copy = str(tmp_path / "signed.stitch.zip")
    assert call(workspace, "certify", "last", "--output", copy, "--sign", str(secret))[0] == 0
    code, found = call(workspace, "certify", "--verify", copy, "--signer", str(public))
    assert code == 0
    assert found["signer"] is not None
    assert call(workspace, "certify", "--verify", copy, "--signer", str(foreign))[0] == 3
    unsigned = call(workspace, "certify", "--verify", "last", "--signer", str(public))
    assert unsigned[0] == 3
    assert "not signed" in unsigned[1]["error"]["message"]


def test_a_run_s_certificate_that_is_damaged_or_gone_is_written_again_by_resuming(
    certified: Archive, workspace: Path
) -> None:
    path = Path(call(workspace, "certify", "last")[1]["path"])
    whole = path.read_bytes()
    for damaged, word in ((whole[:-1] + b"?", "damaged"), (None, "missing")):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        code, found = call(workspace, "certify", "last")
        assert (code, found["error"]["code"]) == (3, "certificate")
        assert word in found["error"]["message"]
        assert "solve --resume" in found["error"]["hint"]
        assert call(workspace, "solve", "--resume", "last")[0] == 0
        code, found = call(workspace, "certify", "--verify", "last")
        assert (code, found["program_id"]) == (0, certified.certificate.program_id)
