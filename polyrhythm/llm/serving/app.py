"""The ASGI application: routes, OpenAI's forms of answers, server-sent events, errors, keys and metrics."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from polyrhythm.errors import PolyrhythmError
from polyrhythm.llm.model import Model
from polyrhythm.llm.serving import bodies
from polyrhythm.llm.serving.description import described
from polyrhythm.llm.serving.engine import Engine
from polyrhythm.llm.serving.page import PAGE
from polyrhythm.llm.serving.requests import Busy, Request
from polyrhythm.llm.writing import Piece, TokenLogprob


@dataclass(frozen=True)
class Settings:
    """What a server is told: the model's name, a key that requests must bring, and how long one may take."""

    name: str
    api_key: str | None = None
    timeout: float = 600.0


def application(
    model: Model, name: str, rows: int = 8, waiting: int = 64, api_key: str | None = None, timeout: float = 600.0
) -> Starlette:
    """A server for a model, as an ASGI application; its engine runs while the application does.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     app = application(llm.load(llm.write_random(folder), backend="numpy"), "random")
    >>> sorted(route.path for route in app.routes)
    ['/', '/health', '/metrics', '/openapi.json', '/v1/chat/completions', '/v1/completions', '/v1/embeddings', ...]
    """
    server = _Server(model, Settings(name, api_key, timeout), rows, waiting)
    routes = [
        Route("/", server.page),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
        Route("/openapi.json", server.description),
        Route("/v1/models", server.models),
        Route("/v1/completions", server.completions, methods=["POST"]),
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/v1/embeddings", server.embeddings, methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.engine = Engine(model, rows, waiting)
        yield
        await asyncio.to_thread(server.engine.close)

    handlers: dict[Any, Any] = {bodies.Refused: _refused, Busy: _busy, PolyrhythmError: _unable}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class _Server:
    """The routes of one model."""

    engine: Engine

    def __init__(self, model: Model, settings: Settings, rows: int, waiting: int) -> None:
        self.model, self.settings = model, settings

    async def page(self, request: HTTPRequest) -> Response:
        return HTMLResponse(PAGE.replace("{{name}}", self.settings.name.replace("<", "&lt;")))

    async def health(self, request: HTTPRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def description(self, request: HTTPRequest) -> Response:
        return JSONResponse(described(self.settings.name, version("polyrhythm")))

    async def metrics(self, request: HTTPRequest) -> Response:
        """What Prometheus reads."""
        counts = vars(self.engine.counts)
        lines = [f"# TYPE polyrhythm_{name}_total counter\npolyrhythm_{name}_total {n}" for name, n in counts.items()]
        prefixes = 0 if self.engine.slots is None else self.engine.slots.prefixes.nbytes
        gauges = {"queued": self.engine.queued, "running": self.engine.running, "prefix_bytes": prefixes}
        for name, value in gauges.items():
            lines.append(f"# TYPE polyrhythm_{name} gauge\npolyrhythm_{name} {value}")
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def models(self, request: HTTPRequest) -> Response:
        self._allowed(request)
        entry = {"id": self.settings.name, "object": "model", "created": 0, "owned_by": "polyrhythm"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def completions(self, request: HTTPRequest) -> Response:
        return await self._answer(request, bodies.completion, _CompletionForm)

    async def chat(self, request: HTTPRequest) -> Response:
        return await self._answer(request, bodies.chat, _ChatForm)

    async def embeddings(self, request: HTTPRequest) -> Response:
        body = await self._body(request)
        rows, packed = await asyncio.to_thread(bodies.embeddings, self.model, body)
        loop, found = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def take(item: Any) -> None:  # called by the engine's thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(found.put_nowait, item)

        tokens, late = [token for row in rows for token in row], time.monotonic() + self.settings.timeout
        self.engine.submit(Request(tokens, 1, {}, take, late, work=lambda model: model.embed(rows)))
        item = await found.get()
        if isinstance(item, TimeoutError):
            raise bodies.Refused("the request took too long", status=504)
        if isinstance(item, Exception):
            raise item
        vectors = [base64.b64encode(v.tobytes()).decode() if packed else v.tolist() for v in item[1]]
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        usage = {"prompt_tokens": len(tokens), "total_tokens": len(tokens)}
        return JSONResponse({"object": "list", "data": data, "model": self.settings.name, "usage": usage})

    def _allowed(self, request: HTTPRequest) -> None:
        key = self.settings.api_key
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not hmac.compare_digest(given.encode(), key.encode()):
            raise bodies.Refused("the API key is missing or wrong", status=401)

    async def _body(self, request: HTTPRequest) -> Any:
        """What a request says, if it may and is not too long."""
        self._allowed(request)
        body = bytearray()
        async for part in request.stream():  # whatever length it claims to have
            body += part
            if len(body) > bodies.LARGEST_BODY:
                raise bodies.Refused("the body is too large", status=413)
        return bodies.parsed(bytes(body))

    async def _answer(self, request: HTTPRequest, read: Callable[..., bodies.Asked], form: type[_Form]) -> Response:
        body = await self._body(request)
        asked = await asyncio.to_thread(read, self.model, body)
        run = _Run(self.engine, asked, self.settings.timeout)
        made = form(self.settings.name, self.model.tokenizer, asked)
        if asked.stream:
            return StreamingResponse(_events(run, made), media_type="text/event-stream")
        async with run:
            waiting = asyncio.ensure_future(run.collect())
            while not waiting.done():
                await asyncio.wait([waiting], timeout=0.25)
                if not waiting.done() and await request.is_disconnected():
                    waiting.cancel()
                    raise ClientDisconnect
            return JSONResponse(made.whole(waiting.result()))


class _Run:
    """The sequences of one request while they are written. Left early, it cancels what is still open."""

    def __init__(self, engine: Engine, asked: bodies.Asked, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Any] = asyncio.Queue()
        self._asked, self._samples = asked, asked.options.get("n", 1)
        self._requests: list[Request] = []
        try:
            for number, prompt in enumerate(asked.prompts):
                request = Request(
                    prompt, asked.max_new_tokens, asked.options, self._taking(number), time.monotonic() + timeout
                )
                engine.submit(request)
                self._requests.append(request)
        except Busy:
            self.cancel()
            raise

    def _taking(self, number: int) -> Callable[[Any], None]:
        def take(item: Any) -> None:  # called by the engine's thread
            moved = item
            if isinstance(item, tuple):
                moved = (number * self._samples + item[0], item[1])
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, moved)

        return take

    async def __aenter__(self) -> _Run:
        return self

    async def __aexit__(self, *rest: Any) -> None:
        self.cancel()

    def cancel(self) -> None:
        for request in self._requests:
            request.cancelled = True

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        left = len(self._requests)
        while left:
            item = await self._pieces.get()
            if isinstance(item, TimeoutError):
                raise bodies.Refused("the request took too long", status=504)
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item

    async def collect(self) -> list[list[Piece]]:
        """All pieces of each sequence."""
        found: list[list[Piece]] = [[] for _ in range(len(self._asked.prompts) * self._samples)]
        async for number, piece in self:
            found[number].append(piece)
        return found


async def _events(run: _Run, form: _Form) -> AsyncIterator[str]:
    """Server-sent events: a chunk for each piece, then perhaps the usage, then the end."""
    count = 0
    async with run:
        try:
            for chunk in form.opening():
                yield _event(chunk)
            async for number, piece in run:
                count += 1
                yield _event(form.chunk(number, piece))
        except Exception as error:  # whatever it is, who waits for the stream hears of it in the stream
            known = isinstance(error, (bodies.Refused, PolyrhythmError, Busy))
            if not known:
                logging.getLogger(__name__).exception("a request failed")
            message = str(error) if known else "the server failed to answer"
            yield _event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})
            return
        if form.asked.usage:
            yield _event(form.closing(count))
        yield "data: [DONE]\n\n"


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


class _Form:
    """How answers are written down: as OpenAI's API has them."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(self, name: str, tokenizer: Any, asked: bodies.Asked) -> None:
        self.tokenizer, self.asked = tokenizer, asked
        self._common = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def choice(self, pieces: list[Piece]) -> dict[str, Any]:
        raise NotImplementedError

    def delta(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def whole(self, rows: list[list[Piece]]) -> dict[str, Any]:
        choices = [
            {"index": n, **self.choice(pieces), "finish_reason": pieces[-1].finish_reason}
            for n, pieces in enumerate(rows)
        ]
        usage = self._usage(sum(map(len, rows)))
        return {**self._common, "object": self.whole_object, "choices": choices, "usage": usage}

    def chunk(self, number: int, piece: Piece) -> dict[str, Any]:
        choice = {"index": number, **self.delta(piece), "finish_reason": piece.finish_reason}
        return {**self._common, "object": self.chunk_object, "choices": [choice]}

    def closing(self, count: int) -> dict[str, Any]:
        return {**self._common, "object": self.chunk_object, "choices": [], "usage": self._usage(count)}

    def _usage(self, count: int) -> dict[str, int]:
        given = sum(map(len, self.asked.prompts))
        return {"prompt_tokens": given, "completion_tokens": count, "total_tokens": given + count}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = "" if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class _ChatForm(_Form):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        count = self.asked.options.get("n", 1)
        return [
            {**self._common, "object": self.chunk_object, "choices": [{"index": number, **first}]}
            for number in range(count)
        ]

    def choice(self, pieces: list[Piece]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces), "refusal": None}
        return {"message": message, "logprobs": self._logprobs(pieces)}

    def delta(self, piece: Piece) -> dict[str, Any]:
        return {"delta": {"content": piece.text}, "logprobs": self._logprobs([piece])}

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None
        content = []
        for entry in (piece.logprob for piece in pieces):
            assert isinstance(entry, TokenLogprob)
            top = [self._entry(token, logprob) for token, logprob in entry.top]
            content.append({**self._entry(entry.token, entry.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}


class _CompletionForm(_Form):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def choice(self, pieces: list[Piece]) -> dict[str, Any]:
        return {"text": "".join(piece.text for piece in pieces), "logprobs": self._logprobs(pieces)}

    def delta(self, piece: Piece) -> dict[str, Any]:
        return {"text": piece.text, "logprobs": self._logprobs([piece])}

    def _logprobs(self, pieces: list[Piece]) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None
        entries = [piece.logprob for piece in pieces if piece.logprob is not None]
        texts = [self._entry(entry.token, entry.logprob)["token"] for entry in entries]
        top = [{self._entry(token, lp)["token"]: lp for token, lp in entry.top} for entry in entries]
        return {"tokens": texts, "token_logprobs": [entry.logprob for entry in entries], "top_logprobs": top}


def _error(message: str, status: int, parameter: str | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": parameter, "code": None}}
    return JSONResponse(body, status, {"retry-after": "1"} if status == 429 else None)


async def _refused(request: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, bodies.Refused)
    return _error(error.message, error.status, error.parameter)


async def _busy(request: HTTPRequest, error: Exception) -> Response:
    return _error("the server is busy: its queue is full", 429)


async def _unable(request: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, PolyrhythmError)
    return _error(error.what, 400)
