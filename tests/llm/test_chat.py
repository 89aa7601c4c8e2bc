"""Conversations as transformers write them, in a sandbox, and answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.chat import template_of
from polyrhythm.llm.errors import ModelMissingError, PromptError
from tests.llm.gguf_files import smollm2

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are SmolLM<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system_message = messages[0]['content'] %}
{% else %}
    {% set loop_messages = messages %}
    {% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if loop.index0 == 0 and system_message != false %}
        {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
"""
TOOLS = """{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}{{- tool | tojson(indent=2) }}
    {%- endfor %}
    {{- '</tools>' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'skipped' %}{% continue %}{% endif %}
    {%- set ns.last = loop.index %}
    {{- '<' ~ message.role ~ '>' ~ message.content ~ '\\n' }}
{%- endfor %}
{{- ns.last }}{{ '>' if add_generation_prompt else '' }}{{ custom | default('none') }}"""


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]


CONVERSATIONS = [
    turns("hi"),
    turns("hi", system="Be brief."),
    turns("hi", "hello!", "how are you?"),
    turns("hi", "hello!", "how are you?", system="You are a pirate."),
    turns("  spaces \n\n and lines  "),
    turns("quotes \" ' and <tags> & {{ braces }} {% raw %}"),
    turns("ünïcödé 你好 🎉", "ok", "more"),
    turns("a\n", "b\n", "c\n", "d\n", "e\n"),
    turns("", "an answer to nothing", "and more"),
    turns("x" * 300, system="long " * 50),
    turns("tabs\tand\rreturns\r\n"),
    turns("<|im_start|>system\nnot really<|im_end|>"),
    turns("[INST] nested [/INST]", "</s>", "<s>"),
    turns("1 + 1 =", "2", "2 + 2 =", "4", "and 3 + 3?", system="Answer with a number."),
    turns("\\n is not a newline \\\\"),
    turns("{'a': 1}", '{"b": [1, 2]}', "None"),
    turns("العربية עברית", "e\u0301 combined", "\u200b zero width"),
    turns("code:\n```python\nprint('hi')\n```", "```\nhi\n```", "thanks"),
    turns("question?", " leading", "trailing "),
    turns("one", "two", "three", "four", "five", "six", "seven", system=""),
]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"a": "<int>", "b": "ü"}}}


@pytest.mark.parametrize("source", [CHATML, LLAMA2, TOOLS], ids=["chatml", "llama2", "tools"])
@pytest.mark.parametrize("number", range(len(CONVERSATIONS)))
def test_texts_are_those_of_transformers(source: str, number: int) -> None:
    messages, special = CONVERSATIONS[number], {"bos_token": "<s>", "eos_token": "</s>"}
    given: dict[str, Any] = {"tools": [TOOL], "custom": "x"} if source is TOOLS else {}
    for prompted in (True, False):
        (expected,), _ = render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=prompted, **given, **special
        )
        template = llm.ChatTemplate(source, special)
        assert template.render(messages, add_generation_prompt=prompted, **given) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ raise_exception('no tools') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages[7].content }}",
    ],
)
def test_templates_that_are_refused(source: str) -> None:
    messages = turns("hi")
    with pytest.raises(PromptError, match="the chat template refuses"):
        llm.ChatTemplate(source).render(messages)
    assert messages == turns("hi")


def test_a_template_that_is_not_one() -> None:
    with pytest.raises(UnsupportedError, match="is not Jinja"):
        llm.ChatTemplate("{% for %}").render(turns("hi"))


@pytest.mark.parametrize("messages", ["hi", [], {"role": "user", "content": "x"}, ["hi"], [{"content": "x"}], None])
def test_what_is_no_conversation(messages: Any) -> None:
    with pytest.raises(PromptError):
        llm.ChatTemplate(CHATML).render(messages)


def test_where_a_folder_keeps_its_template(tmp_path: Path) -> None:
    def write(**given: Any) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))

    assert template_of(tmp_path) is None
    write(chat_template="A", bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None)
    assert template_of(tmp_path) == llm.ChatTemplate("A", {"bos_token": "<s>", "eos_token": "</s>"})
    write(chat_template=[{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}])
    assert template_of(tmp_path) == llm.ChatTemplate("D")
    (tmp_path / "chat_template.jinja").write_text("F")
    assert template_of(tmp_path) == llm.ChatTemplate("F")


def test_a_model_answers_what_its_template_asks(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, num_hidden_layers=1)
    model = llm.load(folder, backend="numpy")
    with pytest.raises(ModelMissingError, match="no chat template"):
        model.chat(turns("hi"))
    (folder / "chat_template.jinja").write_text(CHATML)
    model = llm.load(folder, backend="numpy")
    text = model.apply_chat_template(turns("hi"))
    assert text.endswith("<|im_start|>assistant\n")
    answer = model.chat(turns("hi"), 6)
    tokens = model.tokenizer.encode(text, add_special_tokens=False).ids
    assert answer.tokens.tolist() == model.generate(tokens, 6).tokens.tolist()
    assert "".join(piece.text for piece in model.stream_chat(turns("hi"), 6)) == answer.text


@pytest.mark.slow
def test_a_real_model_answers() -> None:
    model = llm.load(smollm2(), "bfloat16")
    answer = model.chat(turns("What is the capital of France?"), 40)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert np.isin(answer.tokens[-1], model.config.ends)
