"""One episode in OpenEnv's own environment: reset and step over its server and client. Prints the reward."""

import json
import sys
import threading

import uvicorn
from openenv.core.generic_client import GenericEnvClient

from stitch_mcp.rl.reward.adapters.openenv_environment import app


def main() -> None:
    row = json.load(sys.stdin)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        pass
    port = server.servers[0].sockets[0].getsockname()[1]
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
        first = client.reset(prompt=row["prompt"], task=row["task"], preset=row["preset"])
        assert first.observation["prompt"] == row["prompt"]
        result = client.step({"text": row["completion"]})
    print(json.dumps({"reward": result.reward, "done": result.done}))


main()
