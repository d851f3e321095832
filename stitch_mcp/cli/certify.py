"""`stitch-mcp certify`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import for_rerun
from stitch_mcp.cli.options import accept_option, json_option, run_options
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings, load_config
from stitch_mcp.views.table import ReportSection


@click.command("certify")
@click.argument("subject", metavar="[RUN|FILE]", default="last")
@click.option(
    "--verify", is_flag=True, help="Verify the certificate FILE, or that of RUN, instead of writing one."
)
@click.option(
    "--rerun", is_flag=True, help="With --verify: build, check and time its program again on this machine."
)
@click.option(
    "--quick",
    is_flag=True,
    help="With --rerun: no sanitizers, fewest rounds, only torch.compile's default mode.",
)
@accept_option
@click.option("--signer", metavar="KEY.pub", help="With --verify: require a signature by this ed25519 key.")
@click.option("--output", metavar="PATH", help="Where to write a run's certificate.")
@click.option("--sign", metavar="KEY.pem", help="Sign the copy at --output with this ed25519 key.")
@run_options
@json_option
def command(
    subject: str,
    verify: bool,
    rerun: bool,
    quick: bool,
    signer: str | None,
    output: str | None,
    sign: str | None,
    as_json: bool,
    **settings: Unpack[Settings],
) -> int:
    """Write the certificate of a run, or verify one.

    RUN is a run's id, a unique prefix of it, or `last` (the default). FILE is a certificate, for --verify.

    --verify only shows that nothing in the archive is damaged. --verify --rerun shows whether its figures are
    true: it builds the program again, checks it with fresh secret inputs, times it, and compares the speedups
    on the same device model.
    """
    from stitch_mcp.certificates import export_certificate, verify_certificate
    from stitch_mcp.printed_commands import program_name
    from stitch_mcp.views.fact_tables import certificate_sections, rerun_sections

    _refuse_mixtures(
        verify,
        {"--output": output, "--sign": sign},
        {"--rerun": rerun, "--signer": signer, "--quick": quick, "--accept": settings.get("accept")},
    )
    if settings.get("accept") and not rerun:
        raise click.UsageError("--accept goes with --rerun: a certificate keeps what its run accepted")
    screen = CommandOutput("certify", as_json=as_json)
    root = load_config(settings).workspace
    if not verify:
        certificate = export_certificate(root, subject, output, sign=sign)
        again = f"{program_name()} certify --verify {shlex.quote(certificate.path)}"
        section = ReportSection(notes=(f"certificate: {certificate.path}", f"verify it: {again}"))
        return screen.finish(dict(certificate), [section])
    # A run's own certificate is meant where the name is no file.
    named = Path(subject).suffix == ".zip" or Path(subject).exists()
    path = subject if named else export_certificate(root, subject, None).path
    certificate = verify_certificate(path, signer=signer)
    if not rerun:
        return screen.finish({"verified": True, **dict(certificate)}, certificate_sections(certificate))
    from stitch_mcp.rerun_certificate import rerun_certificate

    again = rerun_certificate(path, quick=quick, emit=screen.progress, **settings)
    fields = {"verified": True, **dict(certificate), "rerun": again}
    return screen.finish(
        fields, [*certificate_sections(certificate, rerun=True), *rerun_sections(again)], for_rerun(again)
    )


def _refuse_mixtures(verify: bool, writing: Mapping[str, object], verifying: Mapping[str, object]) -> None:
    if verify and any(writing.values()):
        raise click.UsageError("--output and --sign write a certificate; --verify reads one")
    if not verify and (given := [name for name, value in verifying.items() if value]):
        verb = "goes" if len(given) == 1 else "go"
        raise click.UsageError(f"{' and '.join(given)} {verb} with --verify")
