# Made by tools/unasync.py from the asynchronous twin: change that.
"""Acknowledges a worker's finished messages in the background, many with one request.

A message whose ack was not answered when the process dies is delivered again, as after any crash before an ack.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.client._sync.message import LeasedMessage
from penstock.client._concurrency_threads import Mutex, OneShotEvent
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._sync.client import Client

log = logging.getLogger("penstock.worker")
PENDING_MAX = 1_000


class Acknowledger:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._mutex = Mutex()
        self._pending: list[LeasedMessage] = []
        self._added = OneShotEvent()
        self._closed = False

    def add(self, message: LeasedMessage) -> bool:
        """Acknowledge the message soon. Returns False if too many acks are pending: wait for this one instead."""
        with self._mutex:
            if len(self._pending) >= PENDING_MAX:
                return False
            self._pending.append(message)
        self._added.set()
        return True

    def close(self) -> None:
        """Let `run` return when all acks are sent."""
        self._closed = True
        self._added.set()

    def run(self) -> None:
        while True:
            with self._mutex:
                batch, self._pending = self._pending, []
            if batch:
                self._ack(batch)
            elif self._closed:
                return
            else:
                self._added.wait()

    def _ack(self, batch: list[LeasedMessage]) -> None:
        queue = batch[0].queue
        try:
            results = self._client.transport.settle("ack", queue, [message.item() for message in batch])
        except PenstockError as trouble:
            log.warning("cannot acknowledge %d messages of %r: %s", len(batch), queue, trouble)
            for message in batch:
                self._client.lease_renewer.forget(message)
            return
        for message, result in zip(batch, results, strict=True):
            try:
                message._end(result)
            except PenstockError as trouble:
                log.warning("cannot acknowledge message %d of %r: %s", message.id, queue, trouble)
