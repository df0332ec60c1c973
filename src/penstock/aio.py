"""The SDK for asyncio: as `penstock.connect`, with `await`.

async with penstock.aio.connect("sqlite:///tasks.db") as client:
    queue = await client.create_queue("emails")
    await queue.push({"to": "ann"})
    async for message in queue.consume(idle=0):
        async with message:
            print(message.payload)
"""

from penstock.client.client import Client, connect
from penstock.client.message import LeasedMessage
from penstock.client.queue import Queue
from penstock.client.stream import Stream
from penstock.client.transaction import Transaction
from penstock.client.worker import Worker

__all__ = ["Client", "LeasedMessage", "Queue", "Stream", "Transaction", "Worker", "connect"]
