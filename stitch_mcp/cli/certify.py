"""`stitch-mcp certify`."""

import shlex
from pathlib import Path

import click

from stitch_mcp.cli.options import json_option, settings, workspace_option
from stitch_mcp.cli.output import Output
from stitch_mcp.report import Section


@click.command("certify")
@click.argument("subject", metavar="RUN|FILE", default="last")
@click.option("--verify", is_flag=True, help="Verify the certificate FILE, or that of RUN.")
@click.option("--output", metavar="PATH", help="Where to write a run's certificate.")
@workspace_option
@json_option
def command(subject: str, verify: bool, output: str | None, workspace: str | None, as_json: bool) -> int:
    """Write the certificate of RUN (default: the last), or verify FILE.

    Verifying shows that nothing in the archive is damaged, and that is all it shows: whether its figures are
    true, only a re-run on your own machine tells (`stitch-mcp check` and `bench` take a certificate).
    """
    from stitch_mcp.certificates import export_certificate, verify_certificate
    from stitch_mcp.tables import certificate_sections, program_name

    screen = Output("certify", as_json=as_json)
    if verify:
        # A run's own certificate is meant where the name is no file.
        named = Path(subject).suffix == ".zip" or Path(subject).exists()
        seen = verify_certificate(subject) if named else export_certificate(_root(workspace), subject, None)
        return screen.finish({"verified": True, **dict(seen)}, certificate_sections(seen))
    seen = export_certificate(_root(workspace), subject, output)
    again = f"{program_name()} certify --verify {shlex.quote(seen.path)}"
    section = Section(notes=(f"certificate: {seen.path}", f"verify it: {again}"))
    return screen.finish(dict(seen), [section])


def _root(workspace: str | None) -> Path:
    return settings(workspace=workspace).workspace
