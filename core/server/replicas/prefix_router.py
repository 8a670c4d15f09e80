"""`PrefixRouter`: `PrefixPolicy` behind Ray Serve's interface for request routers.

Ray's own prefix-aware router is part of `ray[llm]`, which needs vLLM and pyarrow.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import RequestRouter

from .forwarding import ForwardedRequest
from .prefix_policy import PrefixPolicy, ReplicaLoad


class PrefixRouter(RequestRouter):  # type: ignore[misc] # ray is not type-checked
    def initialize_state(self, **_options: Any) -> None:
        self._policy = PrefixPolicy()
        self._open: dict[str, tuple[ReplicaLoad, ForwardedRequest]] = {}

    def update_replicas(self, replicas: list[Any]) -> None:
        super().update_replicas(replicas)
        found = {key: each.replica_metadata for key, each in self._replicas.items()}
        self._policy.update({key: (each["index"], each["n_slots"]) for key, each in found.items()})

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Returns groups of one replica each, the preferred one first."""
        request = _request_of(pending_request)
        if request is None:
            return [candidate_replicas]
        order = self._policy.order(request)
        if order:  # until it has taken the request, which one that hangs never does
            request.routed_to = self._policy.loads[order[0]].index
        return [[self._replicas[key]] for key in order if key in self._replicas]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        request = _request_of(pending_request)
        load = self._policy.begin(replica_id, request) if request is not None else None
        if load is not None and request is not None:
            self._open[pending_request.metadata.internal_request_id] = load, request

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        found = self._open.pop(internal_request_id, None)
        if found is not None:
            load, request = found
            load.end(request)


def _request_of(pending_request: Any) -> ForwardedRequest | None:
    args = pending_request.args if pending_request is not None else ()
    return args[0] if args and isinstance(args[0], ForwardedRequest) else None
