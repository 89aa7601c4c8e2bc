"""A server for language models: OpenAI's API for completions and chat, streamed as server-sent events, on Starlette.

`polyrhythm serve PATH` runs it. One thread runs the model (`engine`); requests are answered together, as rows of one
program that begin and end at their own step.
"""

from polyrhythm.extras import needs

needs("starlette", "serve", "the server")

from polyrhythm.llm.serving.app import application  # noqa: E402
from polyrhythm.llm.serving.engine import Engine  # noqa: E402
from polyrhythm.llm.serving.requests import Busy  # noqa: E402

__all__ = ["Busy", "Engine", "application"]
