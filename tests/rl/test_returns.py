"""Returns against naive loops in float64, and against rlax."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import rl

DISCOUNT, DECAY, STEPS, ENVS = 0.9, 0.8, 12, 5

ENDS = [False, True, False, False, False, True]

KNOWN_TO_RLAX = ("monte_carlo", "four_steps", "td_lambda", "gae", "vtrace_target", "vtrace_advantage", "retrace")

Arrays = dict[str, np.ndarray]


def rollout(steps: int = STEPS, truncation: bool = True) -> Arrays:
    """Random rollouts. The value that follows a step is that of the next one, but at an end that of another state."""
    random = np.random.default_rng(steps)
    terminated, truncated = random.random((2, steps, ENVS)) < 0.2
    truncated &= truncation
    values = random.normal(size=(steps + 1, ENVS))
    final = random.normal(size=(steps, ENVS))
    return {
        "reward": random.normal(size=(steps, ENVS)),
        "value": values[:-1],
        "following": np.where(terminated | truncated, final, values[1:]),
        "terminated": terminated,
        "truncated": truncated,
        "ratio": np.exp(random.normal(size=(steps, ENVS))),
    }


def ours(kind: str, arrays: Arrays, backend: str = "numpy") -> np.ndarray:
    t, _ = pr.dim("t")
    reward, value, following = (pr.input(n, (ENVS,), (t,), "float64") for n in ("reward", "value", "following"))
    ratio = pr.input("ratio", (ENVS,), (t,), "float64")
    terminated, truncated = (pr.input(n, (ENVS,), (t,), "bool") for n in ("terminated", "truncated"))
    off_policy = (reward, value, following, ratio, terminated, truncated)
    made = {
        "monte_carlo": lambda: rl.monte_carlo(t, reward, terminated, truncated, DISCOUNT),
        "one_step": lambda: rl.n_step(t, reward, following, terminated, truncated, DISCOUNT, 1),
        "four_steps": lambda: rl.n_step(t, reward, following, terminated, truncated, DISCOUNT, 4),
        "td_lambda": lambda: rl.td_lambda(t, reward, following, terminated, truncated, DISCOUNT, DECAY),
        "gae": lambda: rl.gae(t, reward, value, following, terminated, truncated, DISCOUNT, DECAY),
        "vtrace_target": lambda: rl.vtrace(t, *off_policy, DISCOUNT, DECAY).target,
        "vtrace_advantage": lambda: rl.vtrace(t, *off_policy, DISCOUNT, DECAY).advantage,
        "vtrace_clips": lambda: rl.vtrace(t, *off_policy, DISCOUNT, 1.0, 2.0, 1.5).target,
        "retrace": lambda: rl.retrace(t, *off_policy, DISCOUNT, DECAY),
    }
    outputs = made[kind]()
    program = pr.compile(outputs, backend=backend)
    needed = {
        "monte_carlo": ["reward", "terminated", "truncated"],
        "one_step": ["reward", "following", "terminated"],
        "gae": [name for name in arrays if name != "ratio"],
        **{name: list(arrays) for name in ("vtrace_target", "vtrace_advantage", "vtrace_clips", "retrace")},
    }.get(kind, ["reward", "following", "terminated", "truncated"])
    result: np.ndarray = program(**dict[str, Any]({name: arrays[name] for name in needed}))
    return result


def naive_n_step(a: Arrays, n: int, bootstrap: bool = True) -> np.ndarray:
    steps = len(a["reward"])
    found = np.zeros((steps, ENVS))
    for b in range(ENVS):
        for t in range(steps):
            weight = 1.0
            for k in range(t, min(t + n, steps)):
                found[t, b] += weight * a["reward"][k, b]
                weight *= DISCOUNT
                ended = a["terminated"][k, b] or a["truncated"][k, b]
                if ended or k + 1 == min(t + n, steps):
                    if bootstrap and not a["terminated"][k, b]:
                        found[t, b] += weight * a["following"][k, b]
                    break
    return found


def naive_td_lambda(a: Arrays) -> np.ndarray:
    """By its definition: the mean of all n-step returns up to the end of the episode or of the rollout."""
    steps = len(a["reward"])
    every = [naive_n_step(a, n) for n in range(1, steps + 1)]
    found = np.zeros((steps, ENVS))
    for b in range(ENVS):
        for t in range(steps):
            length = 1
            while t + length < steps and not (a["terminated"] | a["truncated"])[t + length - 1, b]:
                length += 1
            for n in range(1, length):
                found[t, b] += (1 - DECAY) * DECAY ** (n - 1) * every[n - 1][t, b]
            found[t, b] += DECAY ** (length - 1) * every[length - 1][t, b]
    return found


def naive_trace(a: Arrays, rho: np.ndarray, c: np.ndarray, start: int) -> np.ndarray:
    """The discounted sum of weighted errors to the end of the episode; traces begin `start` steps ahead."""
    steps = len(a["reward"])
    error = rho * (a["reward"] + DISCOUNT * ~a["terminated"] * a["following"] - a["value"])
    found = np.zeros((steps, ENVS))
    for b in range(ENVS):
        for t in range(steps):
            for k in range(t, steps):
                found[t, b] += DISCOUNT ** (k - t) * np.prod(c[t + start : k + start, b]) * error[k, b]
                if (a["terminated"] | a["truncated"])[k, b]:
                    break
    return found


def naive_vtrace(a: Arrays, decay: float = DECAY, rho_clip: float = 1.0, c_clip: float = 1.0) -> np.ndarray:
    rho, c = np.minimum(a["ratio"], rho_clip), decay * np.minimum(a["ratio"], c_clip)
    return a["value"] + naive_trace(a, rho, c, 0)


def naive_vtrace_advantage(a: Arrays) -> np.ndarray:
    correction = naive_vtrace(a) - a["value"]
    ahead = np.concatenate([correction[1:], np.zeros((1, ENVS))]) * ~(a["terminated"] | a["truncated"])
    led_to = ~a["terminated"] * a["following"] + DECAY * ahead
    return np.minimum(a["ratio"], 1.0) * (a["reward"] + DISCOUNT * led_to - a["value"])


NAIVE: dict[str, Callable[[Arrays], np.ndarray]] = {
    "monte_carlo": lambda a: naive_n_step(a, len(a["reward"]), bootstrap=False),
    "one_step": lambda a: naive_n_step(a, 1),
    "four_steps": lambda a: naive_n_step(a, 4),
    "td_lambda": naive_td_lambda,
    "gae": lambda a: naive_td_lambda(a) - a["value"],
    "vtrace_target": naive_vtrace,
    "vtrace_advantage": naive_vtrace_advantage,
    "vtrace_clips": lambda a: naive_vtrace(a, 1.0, 2.0, 1.5),
    "retrace": lambda a: a["value"] + naive_trace(a, np.ones(()), DECAY * np.minimum(a["ratio"], 1.0), 1),
}


@pytest.mark.parametrize("steps", [1, 2, STEPS])
@pytest.mark.parametrize("kind", NAIVE)
def test_like_naive_loops(kind: str, steps: int) -> None:
    arrays = rollout(steps)
    np.testing.assert_allclose(ours(kind, arrays), NAIVE[kind](arrays), rtol=1e-12, atol=1e-12)


def test_operands_may_have_other_steps() -> None:
    """As in CartPole: rewards that are constant, and ends that are known one step longer than there are rewards."""
    t, T = pr.dim("t")
    ended = pr.input("ended", (), ((t, T + 1),), "bool")
    gain = rl.monte_carlo(t, pr.ones(()), ended, False, 0.5)
    for outputs in (pr.evaluate(gain, {"ended": ENDS}), pr.compile(gain, backend="numpy")(ended=ENDS)):
        assert outputs.tolist() == [1.5, 1.0, 1.75, 1.5, 1.0]


def test_on_jax() -> None:
    arrays = rollout()
    np.testing.assert_allclose(ours("gae", arrays, "jax"), NAIVE["gae"](arrays), rtol=1e-12, atol=1e-12)


def test_like_rlax() -> None:
    """rlax knows discounts only: 0 where an episode is terminated, and no truncation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports uses deprecated names of JAX
        import rlax  # type: ignore[import-untyped]
    arrays = rollout(truncation=False)
    # What follows a terminated step counts for nothing, so the values of rlax's next states may be any.
    discounts = DISCOUNT * (1.0 - arrays["terminated"])
    found = {kind: ours(kind, arrays) for kind in KNOWN_TO_RLAX}
    values = np.concatenate([arrays["value"], arrays["following"][-1:]])
    for b in range(ENVS):
        own = {name: array[:, b].astype("float32") for name, array in arrays.items()}
        r, d, v = own["reward"], discounts[:, b].astype("float32"), own["following"]
        trace = rlax.vtrace_td_error_and_advantage(own["value"], v, r, d, own["ratio"], DECAY)
        c = DECAY * np.minimum(own["ratio"], 1.0)
        expected = {
            "vtrace_target": trace.errors + own["value"],
            "vtrace_advantage": trace.pg_advantage,
            "retrace": rlax.general_off_policy_returns_from_q_and_v(own["value"][1:], v, r, d, c[1:]),
            "monte_carlo": rlax.discounted_returns(r, d, np.zeros_like(v)),
            "four_steps": rlax.n_step_bootstrapped_returns(r, d, v, 4),
            "gae": rlax.truncated_generalized_advantage_estimation(r, d, DECAY, values[:, b].astype("float32")),
            "td_lambda": rlax.lambda_returns(r, d, v, DECAY),
        }
        for kind, wanted in expected.items():
            np.testing.assert_allclose(found[kind][:, b], wanted, rtol=2e-5, atol=2e-5, err_msg=kind)
