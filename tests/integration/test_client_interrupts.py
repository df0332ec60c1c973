"""A client stays usable by every thread after Ctrl-C at any moment of a request."""

from __future__ import annotations

import gc
import threading

import pytest

import penstock
from tests.integration.serving import Running
from tests.interrupts import each_moment, interrupted

PATIENCE_SECONDS = 20


# After an interrupt only the garbage collector can close a connection that was being acquired or returned.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("wait", [0, 0.001], ids=["without waiting", "waiting"])
def test_an_interrupt_at_any_moment_leaves_a_client_usable_by_every_thread(
    server: Running, name: str, wait: float
) -> None:
    with penstock.connect(f"http://127.0.0.1:{server.port}", connections=1, timeout=PATIENCE_SECONDS) as client:
        queue = client.create_queue(name)

        def use() -> None:
            queue.push("x")
            for message in queue.lease(wait=wait):
                message.ack()

        def once(moment: int) -> bool:
            was_interrupted = interrupted(use, moment)
            thread = threading.Thread(target=use, daemon=True)
            thread.start()
            thread.join(PATIENCE_SECONDS / 2)
            assert not thread.is_alive(), f"hangs after an interrupt at moment {moment}"
            return was_interrupted

        assert len(list(each_moment(once))) > 100
    gc.collect()
