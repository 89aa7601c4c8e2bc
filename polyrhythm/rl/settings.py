"""Settings of algorithms, and options of models, by name: from the command line or a file, converted and checked.

A setting is a field of the algorithm's `Settings`; given as `--clip-range 0.1`, or in a file as `clip_range = 0.1`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.errors import DeclarationError

Rule = tuple[Callable[[Any], bool], str]

POSITIVE: Rule = (lambda x: x > 0, "above 0")
FRACTION: Rule = (lambda x: 0 <= x <= 1, "from 0 to 1")
NOT_NEGATIVE: Rule = (lambda x: x >= 0, "0 or more")

RULES: dict[str, Rule] = {
    **dict.fromkeys(("learning_rate", "critic_learning_rate", "max_grad_norm", "clip_range", "target_kl"), POSITIVE),
    **dict.fromkeys(
        ("steps", "epochs", "minibatches", "updates", "batch_size", "buffer_size", "n", "n_step"), POSITIVE
    ),
    **dict.fromkeys(("target_update", "policy_delay", "exploration_steps", "anneal_lr", "temperature"), POSITIVE),
    **dict.fromkeys(("gamma", "gae_lambda", "lambda_", "tau", "exploration_initial", "exploration_final"), FRACTION),
    **dict.fromkeys(("priority_alpha", "priority_beta"), FRACTION),
    **dict.fromkeys(("num_envs", "num_steps", "iterations", "total_steps", "num_seeds", "every"), POSITIVE),
    **dict.fromkeys(("seed", "evaluate_every"), NOT_NEGATIVE),
    **dict.fromkeys(("evaluate_episodes", "atoms", "context", "priority_beta_steps"), POSITIVE),
    **dict.fromkeys(("entropy_coef", "value_coef", "burn_in", "lag", "learning_starts", "rho_clip"), NOT_NEGATIVE),
    **dict.fromkeys(("c_clip", "exploration_noise", "target_noise", "noise_clip"), NOT_NEGATIVE),
}
"""What values a setting may have, in all algorithms that have it."""


def made(kind: type, given: Mapping[str, Any]) -> Any:
    """Settings of a kind, from values or texts by name.

    >>> from polyrhythm import rl
    >>> made(rl.PPOSettings, {"clip_range": "0.1", "clip_value": "false"}).clip_range
    0.1
    >>> made(rl.PPOSettings, {"learning_rate": -1})
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DeclarationError: learning_rate is -1.0, but it must be above 0...
    """
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    given = {f"{name}_" if f"{name}_" in names else name: value for name, value in given.items()}  # --lambda
    unknown = [name for name in given if name not in names]
    if unknown:
        raise DeclarationError(
            f"there is no setting {_option(unknown[0])!r} here", fix=f"there are {', '.join(map(_option, names))}"
        )
    values = {name: _converted(name, value, hints[name]) for name, value in given.items()}
    for name, value in values.items():
        if value is not None and name in RULES and not isinstance(value, bool):
            holds, text = RULES[name]
            if hasattr(value, "dims"):
                continue  # a tensor is known only at the call
            if not math.isfinite(value) or not holds(value):
                raise DeclarationError(f"{name} is {value}, but it must be {text}", fix=f"give another {_option(name)}")
    return kind(**values)


def _converted(name: str, value: Any, hint: Any) -> Any:
    """A text, or a number of a file, as what a setting is."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if hasattr(value, "dims"):
        return value
    if type(None) in kinds and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    kind = next(k for k in kinds if k is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
        if kind is int and isinstance(value, (str, float)) and float(value) == int(float(value)):
            return int(float(value))  # 1e6 is an integer too
        if kind in (int, float):
            return kind(value)
    except (KeyError, ValueError, TypeError):
        pass
    else:
        return value
    words = {bool: "true or false", int: "an integer", float: "a number"}.get(kind, str(kind))
    raise DeclarationError(f"{name} is {value!r}, not {words}", fix=f"give {_option(name)} {words}")


def _option(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")
