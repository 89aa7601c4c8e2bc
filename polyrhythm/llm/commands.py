"""The commands of `polyrhythm` for language models: `generate`, `chat`, `serve`, `bench` and `info`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from polyrhythm.errors import PolyrhythmError

Path = Annotated[str, typer.Argument(help="A Hugging Face folder or a GGUF file on this machine.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy decoding.")]
TopK = Annotated[int | None, typer.Option(help="Sample among the k most likely tokens.")]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling: the most likely tokens with this probability.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens below this fraction of the best probability.")]
TypicalP = Annotated[float | None, typer.Option(help="Locally typical sampling with this probability mass.")]
Repetition = Annotated[float, typer.Option(help="Penalty on tokens of the prompt and the text; 1 is none.")]
Presence = Annotated[float, typer.Option(help="Penalty on tokens that were generated before.")]
Frequency = Annotated[float, typer.Option(help="Penalty on tokens for each time they were generated.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop at this string; may be repeated.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
DType = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or int8; the model's own by default.")]
Window = Annotated[int | None, typer.Option(min=1, help="Sliding-window attention over this many tokens.")]
Backend = Annotated[str, typer.Option(help="jax, torch or numpy.")]
NO_TEXT = "standard input is no text in the encoding of this terminal"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose errors are one message and a fix."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except PolyrhythmError as error:
            print(f"{type(error).__name__}: {error.what}\n  fix: {error.fix}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


@reporting
def generate(
    path: Path,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A prompt; may be repeated. Otherwise standard input.")
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    stop: Stop = None,
    logprobs: Annotated[int | None, typer.Option(help="With --json: log-probabilities, and of so many others.")] = None,
    seed: Seed = 0,
    dtype: DType = None,
    window: Window = None,
    backend: Backend = "jax",
    stream: Annotated[bool, typer.Option("--stream", help="Print tokens as they are generated.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the schedule and the memory plan.")] = False,
    as_json: Json = False,
) -> None:
    """Generate text with a language model."""
    from polyrhythm import llm
    from polyrhythm.llm.sampling import sampling

    if stream and as_json:
        raise typer.BadParameter("--json prints one object at the end; give it or --stream", param_hint="--stream")
    prompts = prompt or [_standard_input("--prompt")]
    began = time.perf_counter()
    model = llm.load(path, dtype, None if window is None else llm.window(window), backend)
    loaded = time.perf_counter()
    options: Any = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": stop,
        "seed": seed,
        "logprobs": logprobs,
    }
    found = []
    if stream:
        _stream(model, prompts, max_new_tokens, options)
    else:
        found = model.generate(prompts, max_new_tokens, **options)
    ended = time.perf_counter()
    how = sampling(model.config.vocabulary, model.config.ends, **options)
    made = model.generating(len(prompts), how.choice).program if plan else None
    if as_json:
        print(json.dumps(_report(prompts, found, made, loaded - began, ended - loaded)))
        return
    if not stream:
        for given, one in zip(prompts, found, strict=True):
            print(given + one.text)
    if made is not None:
        _show_plan(made)


@reporting
def chat(
    path: Path,
    message: Annotated[
        list[str] | None, typer.Option("--message", "-m", help="Ask this and exit; may be repeated for several turns.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Repetition = 1.0,
    stop: Stop = None,
    seed: Seed = 0,
    dtype: DType = None,
    window: Window = None,
    backend: Backend = "jax",
    as_json: Json = False,
) -> None:
    """Chat with a language model: type messages, or pipe one message per line."""
    from polyrhythm import llm

    model = llm.load(path, dtype, None if window is None else llm.window(window), backend)
    options: Any = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "stop": stop,
        "seed": seed,
    }
    talk = model.conversation([] if system is None else [{"role": "system", "content": system}], **options)
    typed = message is None and sys.stdin.isatty()
    turns: list[dict[str, Any]] = []
    for asked in message if message is not None else _lines(typed):
        began, before, pieces = time.perf_counter(), talk.read, []
        for piece in talk.stream(asked, max_new_tokens):
            pieces.append(piece)
            if not as_json:
                print(piece.text, end="", flush=True)
        if not as_json:
            print(flush=True)
        turns.append(
            {
                "finish_reason": pieces[-1].finish_reason if pieces else "length",
                "prompt_tokens": talk.prompt_tokens,
                "read_tokens": talk.read - before,
                "completion_tokens": len(pieces),
                "seconds": time.perf_counter() - began,
            }
        )
    if as_json:
        print(json.dumps({"messages": talk.messages, "turns": turns}))


@reporting
def info(path: Path, as_json: Json = False) -> None:
    """Show the architecture and the sizes of a language model."""
    from polyrhythm import llm

    found = llm.info(path)
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        print(f"{name.replace('_', ' '):>24}  {shown}")


@reporting
def serve(
    path: Path,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The name of the model in the API; its path by default.")] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Requests that are answered together.")] = 8,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are refused with 429.")] = 64,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that a request may take.")] = 600.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="POLYRHYTHM_API_KEY", help="The key that requests must bring.")
    ] = None,
    dtype: DType = None,
    window: Window = None,
    backend: Backend = "jax",
) -> None:
    """Serve a language model: OpenAI's API for completions and chat, and a chat page."""
    from pathlib import Path as FilePath

    from polyrhythm import llm
    from polyrhythm.extras import needs

    needs("uvicorn", "serve", "the server")
    import uvicorn

    from polyrhythm.llm.serving import application

    model = llm.load(path, dtype, None if window is None else llm.window(window), backend)
    app = application(model, name or FilePath(path).stem, max_batch_size, max_queue, api_key, timeout)
    print(f"serving {path} at http://{host}:{port}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=30)


@reporting
def bench(
    path: Path,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    max_new_tokens: MaxNewTokens = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Runs after the first, of which the median is reported.")] = 3,
    dtype: DType = None,
    window: Window = None,
    backend: Backend = "jax",
    as_json: Json = False,
) -> None:
    """Measure loading, the first call, prefill and decoding, and the memory of the process."""
    import resource
    from statistics import median

    from polyrhythm import llm

    began = time.perf_counter()
    model = llm.load(path, dtype, None if window is None else llm.window(window), backend)
    loaded = time.perf_counter() - began
    row = [n % model.config.vocabulary for n in range(1, prompt_tokens + 1)]
    rows = [row] * batch_size

    def seconds(count: int) -> float:
        start = time.perf_counter()
        model.generate(rows, count, ignore_eos=True)
        return time.perf_counter() - start

    first, _ = seconds(max_new_tokens), seconds(1)
    prefill = median(seconds(1) for _ in range(repeat))
    whole = median(seconds(max_new_tokens) for _ in range(repeat))
    decode = max(whole - prefill, 1e-9)
    found = {
        "load_seconds": loaded,
        "first_call_seconds": first,
        "prefill_tokens_per_second": batch_size * prompt_tokens / prefill,
        "decode_tokens_per_second": batch_size * (max_new_tokens - 1) / decode,
        "milliseconds_per_step": 1e3 * decode / max(max_new_tokens - 1, 1),
        "weights_mb": sum(weight.nbytes for weight in model.weights.values()) / 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):>28}  {value:,.2f}")


def _lines(typed: bool) -> Any:
    """The lines of standard input, asked for with a prompt where a person types them."""
    while True:
        try:
            line = input("> " if typed else "")
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise typer.BadParameter(NO_TEXT, param_hint="--message") from error
        if line.strip():
            yield line


def _standard_input(option: str) -> str:
    if sys.stdin.isatty():
        raise typer.BadParameter("give a prompt, or pipe one to standard input", param_hint=option)
    try:
        text = sys.stdin.read().rstrip("\n")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(NO_TEXT, param_hint=option) from error
    if not text:
        raise typer.BadParameter("standard input is empty", param_hint=option)
    return text


def _stream(model: Any, prompts: list[str], count: int, options: Any) -> None:
    """Show text as it comes: of one prompt as running text, of several line by line with the number of the prompt."""
    if len(prompts) == 1:
        print(prompts[0], end="", flush=True)
    for pieces in model.stream(prompts, count, **options):
        for number, piece in enumerate(pieces):
            if piece is not None:
                if len(prompts) == 1:
                    print(piece.text, end="", flush=True)
                elif piece.text:
                    print(f"{number}: {piece.text!r}", flush=True)
    if len(prompts) == 1:
        print()


def _report(prompts: list[str], found: list[Any], made: Any, load: float, run: float) -> dict[str, Any]:
    """What was generated, and how long it took."""
    results = []
    for prompt, one in zip(prompts, found, strict=True):
        result = {
            "prompt": prompt,
            "text": one.text,
            "tokens": one.tokens.tolist(),
            "finish_reason": one.finish_reason,
            "prompt_tokens": one.prompt_tokens,
            "completion_tokens": len(one.tokens),
        }
        if one.logprobs is not None:
            result["logprobs"] = [
                {"token": entry.token, "logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
                for entry in one.logprobs
            ]
        results.append(result)
    count = sum(len(one.tokens) for one in found)
    report: dict[str, Any] = {"results": results, "load_seconds": load, "generate_seconds": run}
    report["tokens_per_second"] = count / run if run else 0.0
    if made is not None:
        report |= {"schedule": made.schedule, "memory": str(made.memory)}
    return report


def _show_plan(program: Any) -> None:
    console = Console(stderr=True)
    console.print(Panel(escape(program.schedule.rstrip()), title="schedule", expand=False))
    console.print(Panel(escape(str(program.memory).rstrip()), title="memory plan", expand=False))
