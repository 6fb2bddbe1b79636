"""What the OpenAPI document promises, tried with requests that are made from it, good and bad."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.serve.server import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_an_unexpected_error(server: Running, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    tried = []
    for result in document.get_all_operations():
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and operation.method in ("get", "delete"):
            continue  # they have nothing that could be wrong

        @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: schemathesis.Case) -> None:
            answer = case.call()
            assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers)
            case.validate_response(answer, checks=[response_schema_conformance, status_code_conformance])

        run()
        tried.append(f"{operation.method.upper()} {operation.path}")
    paths = (
        "/translate",
        "/detect",
        "/translate_file",
        "/v2/translate",
        "/v2/glossaries",
        "/v2/document",
        "/v2/document/{document_id}",
    )
    assert {f"POST {path}" for path in paths} <= set(tried)
