"""The chat page of the server, clicked through: a question, an answer as it comes, a second turn, stop, an error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from polyrhythm import llm

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, llm.Model]]:
    """The address of a server with a small random model, and the model."""
    from polyrhythm.llm.serving import application

    folder = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, eos_token_id=None)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model = llm.load(folder, backend="numpy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = application(model, "tiny <model>", rows=2)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(500):
        if server.started:
            break
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/", model
    server.should_exit = True
    thread.join(30)


@pytest.fixture
def page(browser: Any, served: tuple[str, llm.Model]) -> Iterator[Any]:
    """The page of the server, which asks nobody else; an error of its script fails the test."""
    opened = browser.new_page()
    said: list[str] = []
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith(served[0]) else said.append(request.url))
    opened.goto(served[0])
    yield opened
    opened.close()
    assert not said, said


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.click("#send")


def finished(page: Any, turns: int) -> list[str]:
    """The texts of all messages once the answers are complete."""
    page.wait_for_function(
        f"document.querySelectorAll('.assistant').length === {turns} && !document.getElementById('send').hidden",
        timeout=120_000,
    )
    return [str(text) for text in page.eval_on_selector_all("main > div", "nodes => nodes.map(n => n.textContent)")]


def test_a_conversation_of_two_turns(page: Any, served: tuple[str, llm.Model]) -> None:
    """The answers are those of the model; a name with a bracket is text, and so is what the user writes."""
    _, model = served
    assert page.title() == "tiny <model>"
    ask(page, "<b>hello</b>")
    said = finished(page, 1)
    first = model.generate("u:<b>hello</b>;a:", 1024).text
    assert said == ["<b>hello</b>", first]
    assert page.locator("main b").count() == 0
    page.fill("#text", "more")
    page.press("#text", "Enter")
    said = finished(page, 2)
    assert said[:3] == ["<b>hello</b>", first, "more"]
    assert said[3], "nothing was answered"


STOP_SOON = """new Promise(done => {
  const watch = new MutationObserver(() => {
    if (document.querySelector('.assistant').textContent.length > 3) {
      watch.disconnect(); document.getElementById('stop').click(); done();
    }
  });
  watch.observe(document.querySelector('main'), { childList: true, characterData: true, subtree: true });
  document.getElementById('text').value = 'tell me everything';
  document.getElementById('send').click();
})"""


def test_stopping_an_answer(page: Any, served: tuple[str, llm.Model]) -> None:
    """What came so far stays, and the conversation goes on."""
    whole = served[1].generate("u:tell me everything;a:", 1024).text
    page.evaluate(STOP_SOON)
    _, answer = finished(page, 1)
    assert 3 < len(answer) < len(whole)
    assert whole.startswith(answer)
    ask(page, "go on")
    assert len(finished(page, 2)) == 4


def test_an_error_is_shown(page: Any) -> None:
    """A text that is too long for the model is refused by the server, in words."""
    ask(page, "x" * 5000)
    assert "more than the model reads" in finished(page, 1)[1]


def test_an_empty_message_is_not_sent(page: Any) -> None:
    ask(page, "   ")
    page.wait_for_timeout(200)
    assert page.locator("main > div").count() == 0
