"""The tree API as its first clients call it with Node's fetch, word for word."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import serving_from
from tests.integration.serving import Running

SCRIPT = r"""
const base = process.argv[1]
const call = async (method, path, body) => {
  const headers = body ? { 'Content-Type': 'application/json' } : {}
  const response = await fetch(base + path, { method, headers, body })
  const text = await response.text()
  return { status: response.status, body: text ? JSON.parse(text) : null }
}
const push = `{
  "items": [
    {
      "ns": "email-service",
      "task": "send-notifications",
      "queue": "high-priority",
      "payload": { "to": "user@example.com", "template": "welcome" },
      "transactionId": "550e8400-e29b-41d4-a716-446655440000"
    }
  ],
  "config": {
    "batchMode": true,
    "autoCreate": true
  }
}`
const second = push.replace('550e8400-e29b-41d4-a716-446655440000', '660e8400-e29b-41d4-a716-446655440001')
const answers = {}
answers.pushed = await call('POST', '/api/v1/push', push)
answers.again = await call('POST', '/api/v1/push', push)
answers.popped = await call('GET', '/api/v1/pop/ns/email-service?timeout=30000&wait=true')
answers.acked = await call('POST', '/api/v1/ack', `{
  "transactionId": "550e8400-e29b-41d4-a716-446655440000",
  "status": "completed",
  "error": "Optional error message if failed"
}`)
await call('POST', '/api/v1/push', push.replace('550e8400', '770e8400'))
await call('POST', '/api/v1/push', second)
const scope = '/api/v1/pop/ns/email-service/task/send-notifications'
answers.task = await call('GET', scope + '?timeout=30000&wait=true')
answers.queue = await call('GET', scope + '/queue/high-priority?timeout=30000&wait=true')
answers.batch = await call('POST', '/api/v1/ack/batch', `{
  "acknowledgments": [
    {
      "transactionId": "770e8400-e29b-41d4-a716-446655440000",
      "status": "completed"
    },
    {
      "transactionId": "660e8400-e29b-41d4-a716-446655440001",
      "status": "failed",
      "error": "Connection timeout"
    }
  ]
}`)
answers.configured = await call('POST', '/api/v1/configure', `{
  "ns": "email-service",
  "task": "send-notifications",
  "queue": "high-priority",
  "options": {
    "leaseTime": 300,
    "maxSize": 10000,
    "ttl": 3600,
    "retryLimit": 3,
    "deadLetterQueue": true,
    "delayedProcessing": 60,
    "windowBuffer": 30,
    "priority": 10
  }
}`)
answers.queues = await call('GET', '/api/v1/analytics/queues')
answers.namespace = await call('GET', '/api/v1/analytics/ns/email-service')
answers.one_task = await call('GET', '/api/v1/analytics/ns/email-service/task/send-notifications')
answers.depths = await call('GET', '/api/v1/analytics/queue-depths')
answers.throughput = await call('GET', '/api/v1/analytics/throughput')
answers.nothing = await call('GET', '/api/v1/pop/ns/email-service?timeout=10&wait=true')
console.log(JSON.stringify(answers))
"""
FIRST = "550e8400-e29b-41d4-a716-446655440000"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving_from(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


def test_the_examples_run_word_for_word(server: Running) -> None:
    done = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT, f"http://127.0.0.1:{server.port}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    statuses = {name: answer["status"] for name, answer in answers.items()}
    assert statuses == {
        "pushed": 201,
        "again": 201,
        "popped": 200,
        "acked": 200,
        "task": 200,
        "queue": 200,
        "batch": 200,
        "configured": 201,
        "queues": 200,
        "namespace": 200,
        "one_task": 200,
        "depths": 200,
        "throughput": 200,
        "nothing": 204,
    }
    [pushed] = answers["pushed"]["body"]["messages"]
    assert pushed == {"id": pushed["id"], "transactionId": FIRST, "status": "queued"}
    assert answers["again"]["body"]["messages"] == [pushed | {"status": "duplicate"}]
    [popped] = answers["popped"]["body"]["messages"]
    assert popped["payload"] == {"to": "user@example.com", "template": "welcome"}
    assert (popped["transactionId"], popped["queue"]) == (FIRST, "email-service/send-notifications/high-priority")
    acked = answers["acked"]["body"]
    assert acked == {"transactionId": FIRST, "status": "completed", "completedAt": acked["completedAt"]}
    batch = answers["batch"]["body"]
    assert (batch["processed"], batch["results"][1]["retryScheduled"]) == (2, True)
    assert answers["configured"]["body"]["options"]["delayedProcessing"] == 60
    counted = {"pending": 1, "processing": 0, "completed": 2, "failed": 1, "deadLetter": 0, "total": 3}
    assert answers["queues"]["body"]["queues"][0]["stats"] == counted
    assert answers["namespace"]["body"]["totals"] == answers["one_task"]["body"]["totals"] == counted
    path = "email-service/send-notifications/high-priority"
    assert answers["depths"]["body"] == {"depths": [{"queue": path, "depth": 1, "processing": 0}]}
    assert answers["throughput"]["body"]["throughput"][0].keys() == {
        "timestamp",
        "messagesPerMinute",
        "messagesPerSecond",
    }
