"""Requests that schemathesis makes of what the server says of itself (`/openapi.json`): all are answered as it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from polyrhythm import llm
from polyrhythm.llm.serving import application
from polyrhythm.llm.serving.bodies import CHAT, COMPLETION, EMBEDDINGS

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PATHS = ["/health", "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


@pytest.fixture(scope="module")
def application_(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, hidden_size=32)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return application(llm.load(folder, backend="numpy"), "tiny", rows=2, waiting=8)


@pytest.fixture(scope="module")
def client(application_: Any) -> Iterator[TestClient]:
    with TestClient(application_) as made:
        yield made


def test_it_names_every_path_and_only_parameters_that_are_known(client: TestClient) -> None:
    said = client.get("/openapi.json").json()
    assert sorted(said["paths"]) == sorted(PATHS)
    for path, known in zip(PATHS[2:], (CHAT, COMPLETION, EMBEDDINGS), strict=True):
        body = said["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"].keys() <= known


@pytest.mark.parametrize("path", PATHS)
def test_requests_of_all_kinds_are_answered_as_it_says(application_: Any, client: TestClient, path: str) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", application_)
    every: Any = schema.get_all_operations()
    (operation,) = (own for own in (found.ok() for found in every) if own.path == path)
    statuses = set()

    @given(case=operation.as_strategy())
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and path.endswith("completions"):
            case.body["max_tokens"] = min(case.body.get("max_tokens", 3), 5)
        response = case.call(session=client)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    ask()
    assert 200 in statuses
