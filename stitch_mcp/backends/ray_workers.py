"""Workers on a Ray cluster: one supervisor actor a GPU (or CPU), none of which touches CUDA.

Needs the extra `ray`. Ray is asked for nothing else: which order goes where, what is tried again and what is
given up is decided by the pool.
"""

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from stitch_mcp.backends.pool import Note, WorkerFailureError, WorkerHungError, WorkerLostError
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.base import Fact

OrderT = TypeVar("OrderT", bound=Fact)
AnswerT = TypeVar("AnswerT")
_LOOK_S, _SILENCE_S, _STOP_S = 2.0, 60.0, 30.0
"""So often a supervisor is asked what it does; after so long a silence it is given up."""


class RayCluster:
    """A connection to a cluster. A context manager."""

    def __init__(self, address: str | None = None) -> None:
        """Connects to the cluster at `address`; None starts one of this machine.

        Raises:
            EnvironmentMissingError: Ray is not installed, or nothing answers at the address.
        """
        try:
            # By name: Ray is not installed where types are checked, and has none of its own for actors.
            self.ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise EnvironmentMissingError(
                "Ray is not installed", hint='install the extra: pip install "stitch-mcp[ray]"'
            ) from error
        self._is_own = not self.ray.is_initialized()
        if self._is_own:
            try:
                self.ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise EnvironmentMissingError(
                    f"no Ray cluster answers at {address}: {error}", hint="start one: ray start --head"
                ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def actors(self, kind: type[object], given: Sequence[object], *, workers: int, gpus: int) -> list[Any]:
        """Handles of as many actors as there is room for, at most `workers`; each has a CPU and `gpus` GPUs.

        Raises:
            EnvironmentMissingError: there is no room for a single one.
        """
        # A second thread answers what the first one is doing.
        remote = self.ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_concurrency=2)(kind)
        return [remote.remote(*given) for _ in range(min(workers, self._room(gpus)))]

    def close(self) -> None:
        """End the connection, and the cluster where it was started here."""
        if self._is_own:
            self.ray.shutdown()

    def _room(self, gpus: int) -> int:
        """For how many actors there is room: Ray would wait for ever for more."""
        free: dict[str, float] = self.ray.cluster_resources()
        room = int(free.get("CPU", 0.0))
        if gpus:
            room = min(room, int(free.get("GPU", 0.0)))
        if room < 1:
            have = f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs"
            raise EnvironmentMissingError(f"the cluster has {have}: no room for a worker", hint="add nodes")
        return room


class RayWorker(Generic[OrderT, AnswerT]):
    """A worker that is an actor with `WorkerSupervisor`'s methods."""

    def __init__(
        self,
        ray: Any,
        actor: Any,
        read: Callable[[bytes], AnswerT],
        *,
        name: str,
        files_of: Callable[[OrderT], Mapping[str, bytes]] = lambda _: {},
    ) -> None:
        """A worker over an actor, which it ends.

        Args:
            ray: the module.
            actor: its handle.
            read: makes an answer of its JSON.
            name: for people.
            files_of: content by hash of the files that an order names.
        """
        self.name = name
        self._ray = ray
        self._actor = actor
        self._read = read
        self._files_of = files_of

    def warm_up(self) -> None:
        """Start the worker; see `PoolWorker`."""
        self._told(self._actor.warm_up.remote(), lambda _: None)

    def run(self, order: OrderT, note: Note) -> AnswerT:
        """The worker's answer to an order; see `PoolWorker`."""
        files = self._files_of(order)
        answer = self._told(self._actor.run.remote(order.canonical_json(), files), note)
        try:
            return self._read(answer.encode("utf-8"))
        except ValueError as error:
            raise WorkerLostError("the worker's answer is none") from error

    def close(self) -> None:
        """End the actor: first by asking, so that it ends what it started."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.stop.remote(), timeout=_STOP_S)
        self._ray.kill(self._actor)

    def _told(self, reference: Any, note: Note) -> str:
        """The text of an answer, once it is there.

        Raises:
            WorkerLostError: the actor, its node or its worker ended.
            WorkerHungError: the worker hung.
            WorkerFailureError: the worker told why there is none.
        """
        errors = self._ray.exceptions
        try:
            while not self._ray.wait([reference], timeout=_LOOK_S)[0]:
                doing = self._ray.get(self._actor.doing.remote(), timeout=_SILENCE_S)
                if doing:
                    note(doing)
            how, told = self._ray.get(reference)
        except errors.GetTimeoutError as error:
            self._ray.kill(self._actor, no_restart=False)
            raise WorkerLostError("the supervisor does not answer") from error
        except errors.RayError as error:
            raise WorkerLostError(f"{type(error).__name__}: the node was lost") from error
        if how == "failure":
            raise WorkerFailureError(*json.loads(told))
        if how != "answer":
            raise (WorkerHungError if how == "hung" else WorkerLostError)(told)
        return told
