"""The JSON interface under fuzzed requests: it does what its description says, and never falls over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from poise.control import read_journal
from poise.control.serve._openapi import DOCUMENT
from poise.events import Reported
from test_serve import TOKEN, Server

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    unsupported_method,
]  # fmt: skip

schema = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("fuzzed") / "run.db")
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:schemathesis")
@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False)
def test_fuzzed_requests_are_answered_as_described(case: schemathesis.Case, server: Server) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"} if case.method == "POST" else {}
    response = case.call(base_url=server.url, headers=headers, timeout=20)
    case.validate_response(response, checks=CHECKS)


def test_what_was_fuzzed_wrote_nothing_that_nobody_asked_for(server: Server) -> None:
    """After the requests above: every report in the journal is complete, and the run is where it was or paused."""
    for _, event in read_journal(server.path):
        if isinstance(event, Reported) and event.source.startswith("page:"):
            assert event.who.strip()
            assert event.why.strip()
            assert event.what in ("drain", "pause", "resume")
