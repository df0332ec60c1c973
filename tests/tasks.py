"""Shuts down a test server that runs in its own event loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


async def end(listener: asyncio.Server) -> None:
    """Cancel the tasks of all connections and close the listener.

    Every task must start before it is cancelled and before the listener is closed; otherwise asyncio leaks the socket
    of a connection that it was accepting.
    """
    asyncio.get_running_loop().remove_reader(listener.sockets[0].fileno())
    cancelled: set[asyncio.Task[Any]] = set()
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left - cancelled:
            if inspect.getcoroutinestate(task.get_coro()) != inspect.CORO_CREATED:
                task.cancel()
                cancelled.add(task)
        await asyncio.sleep(0.001)
    listener.close()
