"""Rows from rank to rank through torch.distributed: NCCL between GPUs, gloo on the CPU.

The group is built as `init_process_group` does it, and registered nowhere: a process that already
has a group of its own keeps it, and may load several models.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist  # there, if empty, where torch is built without it
from torch import Tensor

from ..backend.interface import Backend, Rows
from ..errors import ConfigError

STEP_TIMEOUT: Final = timedelta(minutes=10)  # of one step, its kernels compiled on the way
_JOIN_TIMEOUT: Final = timedelta(minutes=2)
_LOOPBACK: Final = "127.0.0.1"
_TAG: Final = 0


class PeerLostError(Exception):
    """Rows could not be sent to, or received from, another rank."""


class Group:
    def __init__(self, store: Path, rank: int, n_ranks: int, backend: Backend) -> None:
        """All ranks do this at the same time. `store`: a file that they all see."""
        self.rank, self.n_ranks = rank, n_ranks
        where = _tensor(backend.new_rows(1, 1)).device
        self.is_gpu = where.type == "cuda"
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        shared = FileStore(str(store), n_ranks)
        shared.set_timeout(_JOIN_TIMEOUT)
        make = _nccl if self.is_gpu else _gloo
        self._group: Any = make(shared, rank, n_ranks, where)

    def send(self, rows: Rows) -> None:
        """To the next rank; rank 0 is behind the last."""
        to = (self.rank + 1) % self.n_ranks
        try:
            self._group.send([_tensor(rows)], to, _TAG).wait()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from None

    def receive(self, rows: Rows) -> None:
        """From the rank before, into `rows`."""
        source = (self.rank - 1) % self.n_ranks
        try:
            self._group.recv([_tensor(rows)], source, _TAG).wait()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from None

    def abort(self) -> None:
        """Whoever waits for rows on the GPU waits no longer. From any thread."""
        if self.is_gpu:
            with suppress(Exception):
                self._group.abort()


def check_distributed(backend: Backend) -> None:
    """Refused where torch cannot do this. `backend`: rank 0's."""
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError("several devices need torch.distributed, which this torch is without")
    if _tensor(backend.new_rows(1, 1)).is_cuda and not dist.is_nccl_available():
        raise ConfigError("several GPUs need NCCL, which this torch is built without")
    if os.name != "posix":
        raise ConfigError("several devices need Linux or macOS")


def _gloo(store: Any, rank: int, n_ranks: int, where: torch.device) -> Any:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()  # the only way to say which interface
    options._timeout = STEP_TIMEOUT
    options._devices = [kind.create_device(hostname=_LOOPBACK)]
    made = kind(store, rank, n_ranks, options)
    return _in_a_group(store, rank, n_ranks, where, made, dist.ProcessGroup.BackendType.GLOO)


def _nccl(store: Any, rank: int, n_ranks: int, where: torch.device) -> Any:
    # GPUs of one machine find each other through sockets before they talk through memory.
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = STEP_TIMEOUT
    made = kind(store, rank, n_ranks, options)
    made._set_sequence_number_for_group()
    made.eager_connect_single_device(where)
    return _in_a_group(store, rank, n_ranks, where, made, dist.ProcessGroup.BackendType.NCCL)


def _in_a_group(
    store: Any, rank: int, n_ranks: int, where: torch.device, made: Any, kind: Any
) -> Any:
    group: Any = dist.ProcessGroup(store, rank, n_ranks)
    group._set_default_backend(kind)
    group._register_backend(where, kind, made)
    return group


def _tensor(rows: Rows) -> Tensor:
    """The same memory."""
    return rows if isinstance(rows, Tensor) else torch.from_numpy(rows)
