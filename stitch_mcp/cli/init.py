"""`stitch-mcp init`."""

import click

from stitch_mcp.cli.options import json_option, settings, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("init")
@click.argument("client")
@click.option("--write", is_flag=True, help="Write it into the client's file; other entries are kept.")
@click.option("--uvx", is_flag=True, help="Let uvx start the server instead of this Python.")
@click.option("--ssh", metavar="HOST:FOLDER", help="Start it on another host, in that folder there.")
@workspace_option
@json_option
def command(
    client: str, write: bool, uvx: bool, ssh: str | None, workspace: str | None, as_json: bool
) -> int:
    """Print or write the configuration with which CLIENT starts the MCP server.

    CLIENT is claude-desktop, claude-code, cursor, vscode, codex or gemini.
    """
    from stitch_mcp import clients

    output = CommandOutput("init", as_json=as_json)
    folder = settings(workspace=workspace).workspace
    target = clients.find_client(client)
    if ssh and uvx:
        raise click.UsageError("--ssh and --uvx exclude each other")
    start = clients.launch_over_ssh(ssh) if ssh else clients.launch(folder, uvx=uvx)
    path = clients.config_path(target, folder)
    if write:
        changed = clients.write_config(target, start, path)
        done = f"wrote {path}" if changed else f"unchanged: {path} already has this entry"
        notes = (done, f"restart {target.title}, and ask it to inspect the environment")
    else:
        notes = (f"for {path} (--write writes it there):", "", clients.config_text(target, start))
    fields = {
        "client": target.name,
        "path": str(path),
        "written": write,
        "text": clients.config_text(target, start),
    }
    return output.finish(fields, [ReportSection(notes=notes)])
