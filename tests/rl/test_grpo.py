"""GRPO: its loss against torch, its update by hand, and a reward that goes up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.rl.grpo import GRPO, Settings, answer_loss


def test_loss_like_torch() -> None:
    """As TRL writes it: the mean over answers of the mean over their tokens, with the k3 estimate of the distance."""
    random, settings = np.random.default_rng(0), Settings(kl_coef=0.3)
    arrays = [random.normal(size=(4, 6)).astype(np.float32) * 0.3 for _ in range(3)]
    advantage = random.normal(size=4).astype(np.float32)
    mask = (np.arange(6) < np.array([[6], [3], [1], [4]])).astype(np.float32)
    new = pr.parameter("new", (4, 6), arrays[0])
    before, first, gains, counts = (pr.constant(a) for a in (*arrays[1:], advantage, mask))
    loss = answer_loss(new, before, first, gains, counts, settings)
    found, slope = pr.compile((loss, pr.grad(loss, new)), backend="numpy")()
    theirs = torch.tensor(arrays[0], requires_grad=True)
    old, reference, weight = torch.tensor(arrays[1]), torch.tensor(arrays[2]), torch.tensor(mask)
    ratio, a = torch.exp(theirs - old), torch.tensor(advantage)[:, None]
    each = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
    each = each + 0.3 * (torch.exp(reference - theirs) - (reference - theirs) - 1)
    wanted = ((each * weight).sum(1) / weight.sum(1)).mean()
    wanted.backward()
    np.testing.assert_allclose(found, wanted.item(), rtol=1e-5)
    assert theirs.grad is not None
    np.testing.assert_allclose(slope, theirs.grad.numpy(), rtol=1e-4, atol=1e-6)


def small(folder: Path) -> Any:
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 260}
    return llm.load(llm.write_random(folder, **sizes))


def test_an_update_follows_the_gradient_of_the_likelihood(tmp_path: Path) -> None:
    """With one answer per prompt of advantage 1 and no penalty, the answer becomes likelier, the other less so."""
    training = GRPO(small(tmp_path), Settings(learning_rate=1e-3, kl_coef=0.0))
    prompt = np.array([65, 66, 67], np.int32)
    texts = [np.concatenate([prompt, np.array(end, np.int32)]) for end in ([70, 71], [80, 81, 82])]

    def likelihood() -> list[float]:
        return [float(training.model.score(text.tolist())[3:].sum()) for text in texts]

    before = likelihood()
    training.learn(texts, [3, 3], np.array([1.0, -1.0]))
    after = likelihood()
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert training.reference.weights is not training.model.weights


def test_a_gradient_like_differences(tmp_path: Path) -> None:
    """Of the mean log-probability of an answer, which is what there is to gain from it at first; by one weight each."""
    settings = Settings(learning_rate=1e-3, kl_coef=0.0, temperature=0.5, max_grad_norm=1e9)
    training = GRPO(small(tmp_path), settings, trained=lambda name: name.endswith("norm.weight"))
    text, weights = np.array([65, 66, 67, 70, 71], np.int32), dict(training.model.weights)
    name = next(iter(training.moments))

    def objective(weight: np.ndarray) -> float:
        training.model.weights = weights | {name: weight}
        judging, _ = training._programs(1)
        return float(np.asarray(judging(tokens=text[:, None], **training.model.weights))[2:4].mean())

    before = np.array(weights[name], np.float32)
    training.model.weights = weights
    training.learn([text], [3], np.array([1.0]))
    moment = np.asarray(training.moments[name][0]) / -0.1  # of the first update: a tenth of the gradient of the loss
    for place in [0, before.size // 2, before.size - 1]:
        step = np.zeros(before.size, np.float32)
        step[place] = 1e-2
        higher, lower = (objective(before + sign * step.reshape(before.shape)) for sign in (1, -1))
        np.testing.assert_allclose(moment.ravel()[place], (higher - lower) / 2e-2, rtol=0.02, atol=1e-4)


def test_probabilities_are_those_of_the_temperature(tmp_path: Path) -> None:
    model = small(tmp_path)
    training = GRPO(model, Settings(temperature=0.5))
    text = np.array([65, 66, 67, 70], np.int32)
    found = np.asarray(training._programs(1)[0](tokens=text[:, None], **model.weights))[:-1, 0]
    logits = np.stack([_scores(model, text[: k + 1]) for k in range(3)]) / 0.5
    wanted = torch.log_softmax(torch.tensor(logits), -1)[torch.arange(3), torch.tensor(text[1:].astype(np.int64))]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _scores(model: Any, text: np.ndarray) -> np.ndarray:
    """The log-probability of each possible next token, by scoring every one of them."""
    return np.array([model.score([*text.tolist(), token])[-1] for token in range(model.config.vocabulary)])


def test_training_goes_on_from_a_file(tmp_path: Path) -> None:
    texts = [np.array([65, 66, 67, 70, 71], np.int32), np.array([65, 66, 67, 80], np.int32)]

    def learn(training: GRPO, times: int) -> GRPO:
        for _ in range(times):
            training.learn(texts, [3, 3], np.array([1.0, -1.0]))
        return training

    settings = Settings(learning_rate=1e-3, epochs=2)
    whole = learn(GRPO(small(tmp_path), settings), 3)
    learn(GRPO(small(tmp_path), settings), 2).save(tmp_path / "grpo.safetensors")
    parts = GRPO(small(tmp_path), settings, seed=9)
    parts.restore(tmp_path / "grpo.safetensors")
    learn(parts, 1)
    for name, weight in whole.model.weights.items():
        np.testing.assert_array_equal(parts.model.weights[name], weight, err_msg=name)
    assert (parts.count, parts.seed) == (whole.count, whole.seed)
    with pytest.raises(pr.errors.PolyrhythmError, match="is not of this model"):
        GRPO(small(tmp_path), settings, trained=lambda name: "norm" in name).restore(tmp_path / "grpo.safetensors")


def test_answers_that_cannot_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(pr.errors.DeclarationError, match="no advantage"):
        GRPO(small(tmp_path), Settings(group=1))
    with pytest.raises(pr.errors.DeclarationError, match="temperature is 0"):
        Settings(temperature=0.0)


@pytest.mark.slow
def test_a_verifiable_reward_goes_up(tmp_path: Path) -> None:
    """How many of the new tokens are letters in the first half of the alphabet of bytes."""
    training = GRPO(small(tmp_path), Settings(group=8, max_new_tokens=8, learning_rate=3e-3, kl_coef=0.0))

    def reward(prompt: Any, answer: Any) -> float:
        return float((answer.tokens < 128).mean()) if len(answer.tokens) else 0.0

    rewards = [training.step(["a", "b"], reward)["reward"] for _ in range(40)]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.2
