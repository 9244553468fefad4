"""Groups of processes that exchange tensors, and how they find each other."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistError, PrefixStore, ProcessGroupGloo, TCPStore

_NO_DEADLINE_SECONDS = 365.0 * 86_400


def node_address() -> str:
    """Where other processes of the job reach this one: the node's address in a Ray cluster, else loopback."""
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return ray.util.get_node_ip_address()
    return "127.0.0.1"


class Meeting:
    """The place where the processes of a group meet; held by one of them as long as the group is used."""

    def __init__(self) -> None:
        """Listen on a free port of this node's address, and on no other address."""
        self._host = node_address()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, 0), family=family)
        self._port = listening.getsockname()[1]
        self._store = TCPStore(
            self._host,
            self._port,
            None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self._host}:{self._port}"


class Group:
    """One process's place in a group. Every member makes the same calls in the same order.

    A member that ends fails the others' calls at once; one that freezes, after the deadline. A group
    whose call failed is of no more use.
    """

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        *,
        device: torch.device,
        start_seconds: float,
        call_seconds: float | None = None,
    ) -> None:
        """Meet the others at `address`; gloo between CPUs, NCCL between GPUs.

        Raises:
            RuntimeError: they did not all come, or one cannot be reached, within `start_seconds`.
        """
        self.rank, self.size = rank, size
        self._device = device
        host, _, port = address.rpartition(":")
        meeting = timedelta(seconds=start_seconds)
        self._store = TCPStore(
            host, int(port), None, is_master=False, timeout=meeting, wait_for_workers=False
        )
        self._round = 0
        self._await_all(start_seconds)
        limit = timedelta(seconds=call_seconds or _NO_DEADLINE_SECONDS)
        self._store.set_timeout(limit)
        self._backend = (_nccl if device.type == "cuda" else _gloo)(self._store, rank, size, limit)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members; bitwise the same in each."""
        self._backend.allreduce(tensor).wait()
        self._settle()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of member `root`."""
        self._backend.broadcast(tensor, root).wait()
        self._settle()

    def gathered(self, text: str) -> list[str]:
        """What each member gave, by rank. For small things."""
        self._round += 1
        self._store.set(f"{self._round}/{self.rank}", text)
        found = [self._store.get(f"{self._round}/{rank}").decode() for rank in range(self.size)]
        if self._round > 1:  # all have come as far as this round, so nobody reads the one before
            self._store.delete_key(f"{self._round - 1}/{self.rank}")
        return found

    def _await_all(self, seconds: float) -> None:
        """Come together before connecting, so that those who never came can be told."""
        try:
            self.gathered("here")
        except DistError:
            absent = [rank for rank in range(self.size) if not self._store.check([f"{self._round}/{rank}"])]
            raise RuntimeError(
                f"{len(absent)} of {self.size} processes did not come within {seconds:g} s: "
                f"ranks {', '.join(map(str, absent))}"
            ) from None

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _gloo(store: TCPStore, rank: int, size: int, limit: timedelta) -> Any:
    gloo: Any = ProcessGroupGloo  # its options are not in torch's type stubs
    options = gloo._Options()
    options._timeout = limit
    options._devices = [gloo.create_device(hostname=node_address())]
    return gloo(PrefixStore("gloo", store), rank, size, options)


def _nccl(store: TCPStore, rank: int, size: int, limit: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
