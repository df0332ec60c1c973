"""Ends a helper that has its own event loop and listener."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any


async def end(listener: asyncio.Server) -> None:
    """Cancel what is being done for connections, and close the listener.

    Each task begins first: cancelled before that, or told that the listener is closed, asyncio leaves the socket of a
    connection that it was accepting open.
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
