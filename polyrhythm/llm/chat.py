"""Chat templates: conversations as the text that a model was trained on.

A template is a Jinja program that comes with the model, so it runs in Jinja's sandbox: it sees the messages, the tools,
the special tokens and what the caller adds, and can neither reach Python objects nor change what it is given. It has
the functions that Hugging Face gives to templates, and their settings of white space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from polyrhythm.errors import UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.llm.errors import ModelMissingError, PromptError
from polyrhythm.llm.read_config import read_json

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

Message = Mapping[str, Any]
"""A message of a conversation: its `role` and its `content`, and what else the template knows."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the special tokens that it may name.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}")
    >>> template.render([{"role": "user", "content": "hi"}])
    '<user>hi'
    """

    source: str
    special: Mapping[str, str] = field(default_factory=dict)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation; with `add_generation_prompt` up to where the model goes on."""
        needs("jinja2", "llm", "a chat template")
        from jinja2 import TemplateError

        given = {"tools": tools, "documents": None, **variables}
        try:
            found = self._compiled().render(
                messages=_checked(messages), add_generation_prompt=add_generation_prompt, **given, **self.special
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise PromptError(
                f"the chat template refuses this conversation: {error}",
                fix="give the roles and the order that the model was trained on",
            ) from None
        return str(found)

    def _compiled(self) -> Any:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """`{% generation %}` marks what the model wrote, for training; its text stays as it is."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return nodes.Scope(body, lineno=line)

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise UnsupportedError(
                f"the chat template of the model is not Jinja: {error}", fix="take the template of the model's makers"
            ) from None


def template_of(folder: Path) -> ChatTemplate | None:
    """The template in a Hugging Face folder: a file of its own, or an entry of tokenizer_config.json."""
    given = read_json(folder / "tokenizer_config.json", needed=False)
    source = given.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    path = folder / "chat_template.jinja"
    if path.is_file():
        source = path.read_text(encoding="utf-8")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, {key: _content(given[key]) for key in SPECIAL if given.get(key) is not None})


def template_of_metadata(metadata: Mapping[str, Any]) -> ChatTemplate | None:
    """The template in the metadata of a GGUF file."""
    source, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens", ())
    if not isinstance(source, str):
        return None
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    numbers = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return ChatTemplate(source, {name: tokens[number] for name, number in numbers.items() if number is not None})


def needed(template: ChatTemplate | None) -> ChatTemplate:
    """A template that must be there."""
    if template is None:
        raise ModelMissingError(
            "the model has no chat template, so it was probably not trained to chat",
            fix="take its instruct version, or write the prompt yourself for model.generate",
        )
    return template


def _content(token: Any) -> str:
    """A special token: a string, or an object with its content."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)


def _checked(messages: Any) -> list[dict[str, Any]]:
    """The messages as dicts of their own: a template cannot change the caller's."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise PromptError("a conversation that is no list of messages", fix='give [{"role": "user", "content": "..."}]')
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise PromptError(
                f"a message {message!r} without a role", fix='give {"role": "user", "content": "..."} for each'
            )
    return [dict(message) for message in messages]


def _to_json(value: Any, indent: int | None = None, **rest: Any) -> str:
    """JSON as it is, where Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=rest.pop("ensure_ascii", False), indent=indent, **rest)
