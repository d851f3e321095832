"""Certificates for people: verify one, write that of a run, load its program as a torch module."""

from pathlib import Path

from stitch_planner.budget import resume_remedy
from stitch_planner.runs.run import Workspace, has_whole_certificate, read_state
from stitch_tools.errors import CertificateError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy, VerdictReason
from stitch_tools.models.base import Fact
from stitch_tools.models.remedy import Remedy
from stitch_tools.storage.certificate import (
    Archive,
    read_certificate,
    read_contents,
    signed,
    write_certificate,
)
from stitch_tools.storage.events import lock_path
from stitch_tools.storage.locks import holder
from stitch_tools.storage.signature import public_key_hex
from stitch_tools.storage.store import write_atomically


class CertificateView(Fact):
    """What a certificate says, once it was verified."""

    path: str
    """Absolute path."""
    certificate_id: str
    created_at: str
    run_id: str
    task_id: str
    program_id: str
    target: str
    status: str
    """CheckStatus."""
    flags: tuple[str, ...]
    counts: bool
    """Whether what it holds amounts to a program that counts, under its policy."""
    reasons: tuple[VerdictReason, ...] = ()
    """Why it does not count; () where it does."""
    policy: AcceptPolicy
    """Which shortcomings its maker accepted."""
    outcome: str
    """BenchOutcome, "unmeasured" where nothing was timed."""
    speedup: float | None
    """Median of eager time / program time."""
    device: str
    """CPU or GPU that the times were taken on."""
    files: int
    """Entries whose hashes were checked."""
    claim: str
    """What verifying shows, and what not."""
    not_checked: tuple[str, ...]
    signer: str | None = None
    """Fingerprint of the ed25519 key that signed it, None where it is unsigned."""


def verify_certificate(path: str | Path, *, signer: str | Path | None = None) -> CertificateView:
    """The certificate's content after every hash and every byte of the archive was checked.

    It must also hold what a certificate is about: task, program, facts, and the files that they name.

    Args:
        path: the certificate.
        signer: PEM file of the ed25519 public key that must have signed it; None accepts any or none.

    Raises:
        CertificateError: it is damaged, no certificate, from a newer version, not signed by `signer`, or
            lacks something; the message names it.
        UsageError: there is no such file, or `signer` is no such key.
    """
    from stitch_tools.judge.verdict import verdict_of

    file = Path(path).expanduser()
    archive = read_certificate(file)
    read_contents(archive, file)
    if signer is not None:
        _require_signer(archive, Path(signer).expanduser())
    certificate = archive.certificate
    bench = certificate.bench
    # Computed from the evidence in the archive: a certificate cannot claim a verdict that its evidence does
    # not give.
    verdict = verdict_of(certificate.check, bench, certificate.policy)
    eager = bench.ratio("eager") if bench else None
    return CertificateView(
        path=str(file.absolute()),
        certificate_id=certificate.certificate_id,
        created_at=certificate.created_at,
        run_id=certificate.run_id,
        task_id=certificate.task_id,
        program_id=certificate.program_id,
        target=certificate.target,
        status=verdict.status,
        flags=verdict.flags,
        counts=verdict.counts,
        reasons=verdict.reasons,
        policy=verdict.policy,
        outcome=bench.outcome if bench else "unmeasured",
        speedup=eager.speedup if eager else None,
        device=(bench.device if bench else "") or certificate.environment.cpu or "",
        files=len(certificate.files),
        claim=certificate.claim,
        not_checked=certificate.not_checked,
        signer=archive.signature.fingerprint if archive.signature else None,
    )


def _require_signer(archive: Archive, key_file: Path) -> None:
    wanted = public_key_hex(key_file)
    if archive.signature is None or archive.signature.public_key != wanted:
        signer_text = f"signed by {archive.signature.fingerprint}" if archive.signature else "not signed"
        raise CertificateError(
            f"the certificate is {signer_text}, which is not the key in {key_file}",
            hint="ask its maker for a copy that is signed with this key",
        )


def export_certificate(
    root: Path, run_id: str, output: str | Path | None, *, sign: str | Path | None = None
) -> CertificateView:
    """The verified certificate of a run, copied to `output` where that is given.

    Args:
        root: the workspace.
        run_id: the run: its id, a unique beginning of it, or "last".
        output: file or folder to write to; None leaves the certificate where it is.
        sign: PEM file of an ed25519 private key with which the copy is signed; needs `output`.

    Raises:
        UsageError: no such run, or it has no certificate.
        CertificateError: its archive is gone, or is not what was written; the hint says how to get it again.
    """
    folder = Workspace(root).run_folder(run_id)
    state = read_state(folder)
    # Only a run that is not finished can be at work; asking for the holder of a lock reads a file.
    by = holder(lock_path(folder / "events.jsonl")) if state.finished is None else ""
    if state.certificate is None and by:
        raise UsageError(
            f"run {folder.name} has no certificate yet: it is running, {by}", hint="wait for its end"
        )
    if state.certificate is None:
        status = state.finished.status if state.finished else "not finished"
        hint = "only programs that count are certified" if state.finished else ""
        remedies = () if state.finished else (resume_remedy(folder.name),)
        raise UsageError(
            f"run {folder.name} has no certificate: it is {status}", hint=hint, remedies=remedies
        )
    path = folder / state.certificate.file
    if sign is not None and output is None:
        # The run's own copy is named by hash in its log.
        raise UsageError("a signed copy needs a place", hint="name one with --output")
    if not has_whole_certificate(folder, state):
        problem = "is not what was written: damaged, or changed" if path.exists() else "is missing"
        again = Remedy(tool="solve", arguments={"run_id": folder.name}, why="write it again")
        raise CertificateError(f"the certificate {path} {problem}", remedies=(again,))
    view = verify_certificate(path)
    if output is not None:
        target = Path(output).expanduser().absolute()
        if target.is_dir():
            target = target / path.name
        if sign is None:
            write_atomically(target, path.read_bytes())
        else:
            write_certificate(signed(read_certificate(path), Path(sign).expanduser()), target)
        # The copy is verified again, since it is what is handed on.
        view = verify_certificate(target)
    return view
