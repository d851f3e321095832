"""`stitch-mcp rl serve`, which is also `stitch-mcp workers start`."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import click

from stitch_mcp.cli.options import accept_option, backend_options, json_option, session_options
from stitch_mcp.cli.rl_options import judging_options
from stitch_mcp.config import Config, Settings

if TYPE_CHECKING:
    from stitch_mcp.rl.reward.judge_workers import JudgePool
    from stitch_mcp.rl.reward.judging import JudgeOptions

_GRACE_S = 900.0
"""What a judge has beyond a submission's own limit: a step that was begun in time may compile for minutes."""


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8322, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on."
)
@click.option("--allow-host", multiple=True, metavar="NAME", help="Additional host name of this server.")
@click.option(
    "--slots",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Workers, so submissions judged side by side; one more is refused with 429. Timing takes turns on "
    "each device.",
)
@click.option(
    "--devices", metavar="N,N|all", help="GPUs that the workers take in turn (default: the first one)."
)
@backend_options
@judging_options
@click.option("--allow-relaxed", is_flag=True, help="Let requests loosen a contract.")
@click.option(
    "--submission-limit-s",
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Begin no further draw or round of one submission after this time.",
)
@accept_option
@session_options
@json_option
def command(
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    slots: int,
    devices: str | None,
    backend: str | None,
    address: str | None,
    full: bool,
    rubric_model: str,
    sanitize: bool,
    allow_relaxed: bool,
    submission_limit_s: float,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Start workers that judge, here or on a Ray cluster, and serve rewards over HTTP.

    POST /verify, GET /presets, GET /health. Requests must carry the token of STITCH_RL_TOKEN; without that
    variable a token is made and printed once. References come with the request, or lie in the workspace.
    `stitch-mcp workers status` shows what the workers do.
    """
    del as_json  # A failure to start is then one JSON object.
    from stitch_mcp.config import configure
    from stitch_mcp.http_app import HttpOptions, new_token, serve_app
    from stitch_mcp.rl.reward.facts import RewardPolicy
    from stitch_mcp.rl.reward.judging import JudgeOptions
    from stitch_mcp.rl.reward.service import TOKEN_VARIABLE, VerifyService, build_service
    from stitch_tools.confine import linux

    config = configure(given)
    options = JudgeOptions(
        policy=RewardPolicy(accept=config.policy),
        quick=not full,
        sanitize=sanitize,
        rubric_model=rubric_model,
        submission_limit_s=submission_limit_s,
    )
    # A judge's process needs no token, and no process of this user may read it from /proc/PID/environ.
    if linux.is_supported():
        linux.set_dumpable(False)
    token = os.environ.pop(TOKEN_VARIABLE, "")
    made = "" if token else new_token()
    with _pool(config, {**given}, options, slots, devices, backend, address) as pool:
        pool.warm_up()
        for row in pool.status().workers:
            click.echo(f"worker {row.name}: {row.state}", err=True)
        service = VerifyService(pool, config.workspace, allow_relaxed=allow_relaxed)
        http = HttpOptions(host, port, token or made, allow_host)

        def say(url: str) -> None:
            if made:
                click.echo(f"token ({TOKEN_VARIABLE}): {made}", err=True)
            click.echo(f"serving rewards of {config.workspace} at {url}", err=True)

        serve_app(build_service(service, http), http, say, path="/verify")
    return 0


def _pool(
    config: Config,
    given: Mapping[str, object],
    options: "JudgeOptions",
    slots: int,
    devices: str | None,
    backend: str | None,
    address: str | None,
) -> "JudgePool":
    from stitch_mcp.backends.pool_status import StatusFile
    from stitch_mcp.cli.options import is_on_ray
    from stitch_mcp.rl.reward.judge_workers import judge_head, local_judges, ray_judges
    from stitch_mcp.suite.gpus import gpu_pins
    from stitch_tools.machine.devices import find_gpus

    head = judge_head(config.workspace, given, options)
    limit_s = options.submission_limit_s + _GRACE_S
    status_file = StatusFile(config.workspace, "rl serve")
    if is_on_ray(backend, address):
        return ray_judges(head, address=address, workers=slots, limit_s=limit_s, status_file=status_file)
    pins = gpu_pins(devices, find_gpus()) if devices else ()
    return local_judges(head, workers=slots, limit_s=limit_s, devices=pins, status_file=status_file)
