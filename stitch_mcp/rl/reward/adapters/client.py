"""Asks the reward service. Standard library only: it runs in other people's environments."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

URL_VARIABLE, TOKEN_VARIABLE = "STITCH_RL_URL", "STITCH_RL_TOKEN"
_AGAIN = (429, 502, 503, 504)
_MOST_WAIT_S = 60.0


class VerifyRefusedError(Exception):
    """The service refuses the request, or gave no answer in time. It is no reward of any submission."""


class VerifyClient:
    """A reward service at its address."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, give_up_s: float = 1800.0
    ) -> None:
        """Names the service.

        Args:
            url: its `/verify`; None: what STITCH_RL_URL says.
            token: None: what STITCH_RL_TOKEN says.
            give_up_s: how long a busy service is asked again.

        Raises:
            VerifyRefusedError: no address is named.
        """
        self._url = url or os.environ.get(URL_VARIABLE, "")
        self._token = token or os.environ.get(TOKEN_VARIABLE, "")
        self._give_up_s = give_up_s
        if not self._url.startswith(("http://", "https://")):
            raise VerifyRefusedError(
                f"no reward service is named: set {URL_VARIABLE} to http://HOST:PORT/verify"
            )

    def verify(self, submission: Mapping[str, Any], task: Mapping[str, Any], preset: str) -> dict[str, Any]:
        """The service's answer: `reward`, `rating`, `status`, `certificate_id`, ...

        Raises:
            VerifyRefusedError: the request is wrong, or the service was busy or broken for too long.
        """
        body = json.dumps({"submission": submission, "task": task, "preset": preset}).encode("utf-8")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        end_s = time.monotonic() + self._give_up_s
        while True:
            request = urllib.request.Request(self._url, body, headers)  # http and https alone, see above
            wait_s, problem = 1.0, ""
            try:
                with urllib.request.urlopen(request, timeout=self._give_up_s) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                problem = f"{error.code}: {error.read(2000).decode('utf-8', 'replace')}"
                if error.code not in _AGAIN:
                    raise VerifyRefusedError(problem) from error
                after = error.headers.get("Retry-After", "")
                wait_s = min(float(after), _MOST_WAIT_S) if after.isdigit() else wait_s
            except OSError as error:
                problem = str(error)
            if time.monotonic() + wait_s > end_s:
                raise VerifyRefusedError(problem)
            time.sleep(wait_s)


def reward_of(answer: Mapping[str, Any]) -> float | None:
    """The total; None where nothing was judged through no doing of the submission."""
    reward = answer["reward"]
    return float(reward["total"]) if reward["valid"] else None


def last_text(completion: Any) -> str:
    """The text of a completion: a string, or messages of which the last one counts."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
