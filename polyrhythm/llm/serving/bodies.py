"""The bodies of requests: what OpenAI's API calls its parameters, checked, as options of `Model.generate`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.model import Model
from polyrhythm.llm.sampling import sampling

SHARED = {
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "n",
    "stream",
    "stream_options",
    "stop",
    "stop_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "logprobs",
    "user",
    "metadata",
    "store",
}
CHAT = SHARED | {"messages", "max_completion_tokens", "top_logprobs", "tools", "response_format"}
COMPLETION = SHARED | {"prompt", "echo", "best_of", "suffix"}
EMBEDDINGS = {"model", "input", "encoding_format", "dimensions", "user"}
MOST_TEXTS = 256
"""Of one request for vectors."""
SAME = ("top_p", "top_k", "min_p", "typical_p", "n", "stop", "stop_token_ids", "presence_penalty", "frequency_penalty")
LARGEST_BODY = 4 << 20
"""In bytes."""


class Refused(Exception):
    """A request that cannot be answered: the status, and what is wrong with which parameter."""

    def __init__(self, message: str, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.parameter, self.status = message, parameter, status


@dataclass(frozen=True)
class Asked:
    """A request that was understood."""

    prompts: list[list[int]]
    max_new_tokens: int
    options: dict[str, Any]
    stream: bool
    usage: bool
    logprobs: bool


def parsed(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refused("the body is not a JSON object")
    return found


def chat(model: Model, body: Mapping[str, Any]) -> Asked:
    """A request for an answer in a conversation."""
    _known(body, CHAT)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("messages must be a list of messages, and not empty", "messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused("every message needs a role", "messages")
        if isinstance(message.get("content"), list):
            message["content"] = _text(message["content"])
        if not isinstance(message.get("content", ""), str | None):
            raise Refused("the content of a message must be text", "messages")
    try:
        tokens = model.chat_tokens(messages, tools=body.get("tools"))
    except PromptError as error:
        raise Refused(error.what, "messages") from None
    wants = body.get("logprobs")
    if wants not in (None, True, False):
        raise Refused("logprobs must be true or false", "logprobs")
    count = (body.get("top_logprobs") or 0) if wants else None
    return _asked(model, body, [tokens], count, "max_completion_tokens", 1024)


def completion(model: Model, body: Mapping[str, Any]) -> Asked:
    """A request for text that goes on from a prompt."""
    _known(body, COMPLETION)
    for key, value in (("echo", False), ("best_of", 1), ("suffix", None)):
        if body.get(key, value) not in (value, None):
            raise Refused(f"{key} is not supported", key)
    if "prompt" not in body or body["prompt"] is None:
        raise Refused("a prompt is needed", "prompt")
    given = body["prompt"]
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    try:
        rows, _ = model.reader.rows(given if several else [given])
    except PromptError as error:
        raise Refused(error.what, "prompt") from None
    return _asked(model, body, [row.tolist() for row in rows], body.get("logprobs"), "max_tokens", 16)


def embeddings(model: Model, body: Mapping[str, Any]) -> tuple[list[list[int]], bool]:
    """A request for vectors of texts: their tokens, and whether the vectors are wanted as base64."""
    _known(body, EMBEDDINGS)
    given, form = body.get("input"), body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise Refused("encoding_format must be float or base64", "encoding_format")
    if body.get("dimensions") not in (None, model.config.width):
        raise Refused(f"the vectors have {model.config.width} dimensions", "dimensions")
    if given is None or given == []:
        raise Refused("an input is needed", "input")
    several = isinstance(given, list) and not isinstance(given[0], int)
    try:
        rows, _ = model.reader.rows(given if several else [given])
    except PromptError as error:
        raise Refused(error.what, "input") from None
    if len(rows) > MOST_TEXTS:
        raise Refused(f"more than {MOST_TEXTS} texts", "input")
    return [row.tolist() for row in rows], form == "base64"


def _asked(
    model: Model, body: Mapping[str, Any], prompts: list[list[int]], logprobs: Any, limit: str, default: int
) -> Asked:
    options: dict[str, Any] = {key: body[key] for key in SAME if body.get(key) is not None}
    if body.get("response_format") is not None:
        options |= _response_format(body["response_format"])
    options["temperature"] = 1.0 if body.get("temperature") is None else body["temperature"]
    if body.get("repetition_penalty") is not None:
        options["repetition_penalty"] = body["repetition_penalty"]
    if body.get("logit_bias"):
        options["logit_bias"] = _bias(body["logit_bias"])
    if logprobs is not None:
        options["logprobs"] = logprobs
    if options["temperature"]:
        options["seed"] = secrets.randbits(31) if body.get("seed") is None else body["seed"]
    count = body.get(limit, body.get("max_tokens"))
    count = default if count is None else count
    longest = max(len(prompt) for prompt in prompts)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise Refused(f"{limit} must be a positive integer", limit)
    room = (model.config.limit or model.config.positions) - longest
    if room < 1:
        raise Refused(f"the prompt has {longest} tokens, more than the model reads", "prompt", 400)
    try:
        sampling(model.config.vocabulary, model.config.ends, **options)
    except PromptError as error:
        raise Refused(error.what) from None
    if options.get("n", 1) * len(prompts) > 16:
        raise Refused("more than 16 sequences", "n")
    extra = body.get("stream_options") or {}
    if not isinstance(body.get("stream", False), bool | None) or not isinstance(extra, dict):
        raise Refused("stream must be true or false, stream_options an object", "stream")
    usage = bool(extra.get("include_usage"))
    return Asked(prompts, min(count, room), options, bool(body.get("stream")), usage, logprobs is not None)


def _known(body: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(key for key in body.keys() - known if body[key] is not None)
    if unknown:
        raise Refused(f"the parameter {unknown[0]} is not known", unknown[0])


def _text(parts: list[Any]) -> str:
    """The text of a content in parts."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refused("only parts of text are supported", "messages")
    return "".join(part["text"] for part in parts)


def _response_format(given: Any) -> dict[str, Any]:
    """The schema that an answer must have, if any: of OpenAI's forms `text`, `json_object` and `json_schema`."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    schema = given.get("json_schema") if kind == "json_schema" else None
    if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        raise Refused("response_format must be text, json_object, or json_schema with a schema", "response_format")
    return {"json_schema": schema["schema"]}


def _bias(given: Any) -> dict[int, float]:
    """JSON has strings for keys."""
    try:
        return {int(token): value for token, value in given.items()}
    except (AttributeError, ValueError):
        raise Refused("logit_bias must be an object from tokens to numbers", "logit_bias") from None
