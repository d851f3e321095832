"""One rollout in verifiers' own environment, its model a local endpoint that gives the row's completion.

Prints the reward of the trace.
"""

import asyncio
import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import verifiers.v1 as vf

from stitch_mcp.rl.reward.adapters.verifiers_taskset import StitchTaskset, StitchTasksetConfig

ROW = json.load(sys.stdin)


class FixedAnswer(BaseHTTPRequestHandler):
    """A chat endpoint that streams the row's completion, whatever it is asked."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        delta = {"role": "assistant", "content": ROW["completion"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        chunks = (
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**head, "choices": [], "usage": usage},
        )
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FixedAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        path.write_text(json.dumps({"prompt": ROW["prompt"], "task": ROW["task"]}) + "\n")
        task = next(iter(StitchTaskset(StitchTasksetConfig(path=path, preset=ROW["preset"]))))
        agent = vf.make_agent(
            vf.AgentConfig(
                model="m",
                client=vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY"),
                harness=vf.HarnessConfig(id="null"),
                runtime=vf.SubprocessConfig(),
            )
        )
        async with agent:
            trace = await agent.run(task)
    errors = [str(error) for error in trace.errors]
    print(json.dumps({"reward": trace.rewards["stitch_reward"].score, "errors": errors}))


asyncio.run(main())
