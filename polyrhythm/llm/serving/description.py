"""What the server answers, as OpenAPI has it: `/openapi.json`, for clients that are generated and tests that are."""

from __future__ import annotations

from typing import Any

TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXT_OR_TOKENS: dict[str, Any] = {"anyOf": [{"type": "string"}, TOKENS]}
SEVERAL: dict[str, Any] = {
    "anyOf": [*TEXT_OR_TOKENS["anyOf"], {"type": "array", "items": TEXT_OR_TOKENS, "minItems": 1}]
}
STOP = {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]}
WRITING: dict[str, Any] = {
    "model": {"type": "string"},
    "max_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "typical_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "n": {"type": "integer", "minimum": 1, "maximum": 16},
    "stream": {"type": "boolean"},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "stop": STOP,
    "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "presence_penalty": {"type": "number"},
    "frequency_penalty": {"type": "number"},
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number"}},
    "seed": {"type": "integer"},
    "user": {"type": "string"},
}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
}
CHAT = {**WRITING, "messages": {"type": "array", "items": MESSAGE, "minItems": 1}, "logprobs": {"type": "boolean"}}
COMPLETION = {**WRITING, "prompt": SEVERAL, "logprobs": {"type": "integer", "minimum": 0}}
EMBEDDINGS = {
    "model": {"type": "string"},
    "input": SEVERAL,
    "encoding_format": {"enum": ["float", "base64"]},
    "user": {"type": "string"},
}
COUNT = {"type": "integer", "minimum": 0}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}


def described(name: str, version: str) -> dict[str, Any]:
    """The description of a server for a model.

    >>> sorted(described("tiny", "1")["paths"])
    ['/health', '/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/models']
    """
    choice = {"index": COUNT, "finish_reason": {"enum": ["stop", "length"]}}
    message = {"type": "object", "required": ["role", "content"]}
    chosen = _listed("choices", choice | {"message": message})
    written = _listed("choices", choice | {"text": {"type": "string"}})
    vectors = _listed("data", {"index": COUNT, "embedding": {"type": ["array", "string"]}})
    models = _listed("data", {"id": {"const": name}})
    return {
        "openapi": "3.1.0",
        "info": {"title": f"polyrhythm serve: {name}", "version": version},
        "paths": {
            "/health": {"get": {"responses": {"200": _answer(_object({"status": {"const": "ok"}}))}}},
            "/v1/models": {"get": {"responses": {"200": _answer(models), "401": _answer(ERROR)}}},
            "/v1/chat/completions": _asked(_object(CHAT, ["messages"]), chosen, streamed=True),
            "/v1/completions": _asked(_object(COMPLETION, ["prompt"]), written, streamed=True),
            "/v1/embeddings": _asked(_object(EMBEDDINGS, ["input"]), vectors, streamed=False),
        },
    }


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """An object; what it asks for is all of it that is known."""
    known = {"required": required, "additionalProperties": False} if required else {"required": [*properties]}
    return {"type": "object", "properties": properties, **known}


def _listed(key: str, properties: dict[str, Any]) -> dict[str, Any]:
    return _object({key: {"type": "array", "items": _object(properties)}})


def _answer(schema: dict[str, Any], streamed: bool = False) -> dict[str, Any]:
    kinds = {"application/json": {"schema": schema}} | ({"text/event-stream": {"schema": {}}} if streamed else {})
    return {"description": "", "content": kinds}


def _asked(body: dict[str, Any], answer: dict[str, Any], streamed: bool) -> dict[str, Any]:
    errors = {status: _answer(ERROR) for status in ("400", "401", "413", "429", "504")}
    content = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": {"requestBody": content, "responses": {"200": _answer(answer, streamed), **errors}}}
