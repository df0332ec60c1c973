"""The SDK for asyncio: the same client as `penstock.connect`, with `await`.

async with penstock.aio.connect("sqlite:///tasks.db") as client:
    queue = await client.create_queue("emails")
    await queue.push({"to": "ann"})
    async for message in queue.consume(idle=0):
        async with message:
            print(message.payload)
"""

from penstock.client._async.client import Client, connect
from penstock.client._async.message import LeasedMessage
from penstock.client._async.queue import Queue
from penstock.client._async.stream import Stream
from penstock.client._async.transaction import Transaction
from penstock.client._async.worker import Worker

__all__ = ["Client", "LeasedMessage", "Queue", "Stream", "Transaction", "Worker", "connect"]
