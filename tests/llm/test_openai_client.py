"""The official `openai` client, unchanged, at a server that listens on a port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import uvicorn

from polyrhythm import llm
from polyrhythm.llm.serving import application

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
KEY = "secret"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    folder: Path = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, eos_token_id=None)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return llm.load(folder, backend="numpy")


@pytest.fixture(scope="module")
def url(model: llm.Model) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = application(model, "tiny", rows=2, api_key=KEY)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [entry.id for entry in client.models.list()] == ["tiny"]


def test_a_chat_whole_and_streamed(client: openai.OpenAI, model: llm.Model) -> None:
    expected = model.generate("u:hello;a:", 6)
    found = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=6, temperature=0
    )
    assert found.choices[0].message.content == expected.text
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (10, 6)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=6,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_completions_logprobs_and_embeddings(client: openai.OpenAI, model: llm.Model) -> None:
    found = client.completions.create(model="tiny", prompt=["ab", "c"], max_tokens=4, temperature=0, logprobs=1)
    expected = [model.generate(prompt, 4, logprobs=1) for prompt in ("ab", "c")]
    assert [choice.text for choice in found.choices] == [one.text for one in expected]
    own = [entry.logprob for entry in expected[0].logprobs or ()]
    assert found.choices[0].logprobs is not None
    assert found.choices[0].logprobs.token_logprobs == pytest.approx(own, abs=1e-5)
    vectors = client.embeddings.create(model="tiny", input=["hello", "other"])  # the client asks for base64
    np.testing.assert_allclose([entry.embedding for entry in vectors.data], model.embed(["hello", "other"]), atol=1e-6)


def test_errors_are_those_of_the_client(client: openai.OpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="positive integer"):
        client.completions.create(model="tiny", prompt="a", max_tokens=-1)
    with (
        openai.OpenAI(base_url=url, api_key="other", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="API key"),
    ):
        other.models.list()


def test_many_at_once(url: str, model: llm.Model) -> None:
    async def asked() -> list[str]:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            every = (
                client.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)
                for prompt in prompts
            )
            return [found.choices[0].text for found in await asyncio.gather(*every)]

    prompts = [chr(97 + n) * (1 + n % 3) for n in range(12)]
    with ThreadPoolExecutor(1) as apart:  # a loop of another test may still be there in this thread
        found = apart.submit(lambda: asyncio.run(asked())).result()
    assert found == [model.generate(prompt, 8).text for prompt in prompts]
