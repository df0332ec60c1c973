"""The measured servers, one file each, which starts the server and pushes, pops and acks through its client."""

from .base import Client, Peer
from .beanstalkd import Beanstalkd
from .nats_jetstream import NatsJetStream
from .penstock_http import PenstockHttp
from .penstock_sdk import PenstockSdk, PenstockThreads
from .rabbitmq import RabbitMQ
from .redis_streams import RedisStreams, ValkeyStreams

PEERS: list[type[Peer]] = [
    PenstockHttp,
    PenstockSdk,
    PenstockThreads,
    RabbitMQ,
    NatsJetStream,
    RedisStreams,
    ValkeyStreams,
    Beanstalkd,
]
OURS = ("penstock", "penstock-sdk", "penstock-threads")

__all__ = ["OURS", "PEERS", "Client", "Peer", "PenstockHttp", "PenstockSdk"]
