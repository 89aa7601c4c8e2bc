"""Settings of algorithms, and options of models, by name: from the command line or a file, converted and checked.

A setting is a field of the algorithm's `Settings`; given as `--clip-range 0.1`, or in a file as `clip_range = 0.1`.
"""

from __future__ import annotations

import dataclasses
import difflib
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


UNLIMITED = ("max_grad_norm", "clip_range", "rho_clip", "c_clip", "noise_clip")
"""Limits that may be infinite: then there is none."""


class Checked:
    """Settings whose values are looked at when they are made.

    >>> from polyrhythm import rl
    >>> rl.PPOSettings(minibatches=0)
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DeclarationError: minibatches is 0, but it must be above 0...
    >>> rl.PPOSettings(max_grad_norm=float("inf")).max_grad_norm
    inf
    """

    def __post_init__(self) -> None:
        check(vars(self))


def check(values: Mapping[str, Any]) -> None:
    """Refuse values that a setting may not have."""
    for name, value in values.items():
        if value is not None and name in RULES and not isinstance(value, bool):
            holds, text = RULES[name]
            if hasattr(value, "dims"):
                continue  # a tensor is known only at the call
            infinite = math.isinf(value) and name not in UNLIMITED
            if infinite or not holds(value):  # NaN holds nothing
                wanted = f"{text} and finite" if infinite else text
                raise DeclarationError(
                    f"{name} is {value}, but it must be {wanted}", fix=f"give another {_option(name)}"
                )


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
        near = [f"did you mean {_option(name)}? " for name in difflib.get_close_matches(unknown[0], names, 1)]
        raise DeclarationError(
            f"there is no setting {_option(unknown[0])!r} here",
            fix=f"{''.join(near)}there are {', '.join(map(_option, names))}",
        )
    values = {name: _converted(name, value, hints[name]) for name, value in given.items()}
    check(values)
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
        if kind is int and not isinstance(value, bool) and float(value) == int(float(value)):
            return int(float(value)) if isinstance(value, (str, float)) else int(value)  # 1e6 is an integer too
        if kind is float and not isinstance(value, bool):
            return float(value)
    except (KeyError, ValueError, TypeError, OverflowError):
        pass
    if isinstance(value, kind) and kind not in (bool, int, float):
        return value
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}.get(kind, str(kind))
    raise DeclarationError(f"{name} is {value!r}, not {words}", fix=f"give {_option(name)} {words}")


def _option(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")
