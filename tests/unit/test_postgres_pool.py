"""The PostgreSQL connection pool during an outage of the database."""

from __future__ import annotations

import pytest

from penstock.errors import StoreUnreachable
from penstock.postgres.connection import Pool
from penstock.postgres.pipeline import PipelinedConnection

CAUSE = "postgresql://db/x: connection failed: host 'a', port 1: refused\\n- host 'b', port 1: no route"


def test_every_caller_gets_the_cause_of_an_outage() -> None:
    tried = []

    def open_one() -> PipelinedConnection:
        tried.append(1)
        raise StoreUnreachable(CAUSE, maybe_done=False)

    pool = Pool(open_one, 2, "postgresql://db/x")
    for _ in range(2):
        with pytest.raises(StoreUnreachable) as caught:
            pool.acquire()
        assert caught.value.args[0] == CAUSE
    assert len(tried) == 1, "the second caller gets the error without another attempt"
