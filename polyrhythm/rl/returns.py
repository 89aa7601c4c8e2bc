"""Returns and advantages as formulae over the steps of a rollout.

All take the step dim t and tensors over it, of any shape, with further dims and axes for environments or iterations.

An episode may end inside a rollout in two ways. Where it is *terminated* nothing follows: the value of what comes
after is zero. Where it is *truncated*, by a limit of time, the rewards stop but the state still has a value. So
`following` is the value of the observation that a step led to, **before** any reset: at the end of an episode that of
its final observation, elsewhere `value[t + 1]`. Nothing is ever taken from the episode that begins next.
"""

from __future__ import annotations

from typing import NamedTuple

from polyrhythm.language.functions import TensorLike, as_tensor, minimum, where
from polyrhythm.language.index import Dim
from polyrhythm.language.recurrent import Recurrent
from polyrhythm.language.tensor import Tensor, union
from polyrhythm.optim.states import bound_of


def monte_carlo(t: Dim, reward: Tensor, terminated: TensorLike, truncated: TensorLike, gamma: float) -> Tensor:
    """The discounted rewards until the end of the episode, or of the rollout: no value is ever asked for.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, end = pr.input("r", (), (t,)), pr.input("end", (), (t,), "bool")
    >>> pr.evaluate(monte_carlo(t, r, end, False, 0.5), {"r": [1, 2, 4], "end": [False, True, False]}).tolist()
    [2.0, 2.0, 4.0]
    """
    goes_on = gamma * _weight(_ended(terminated, truncated), reward)
    return backwards(t, reward, goes_on)


def n_step(
    t: Dim,
    reward: Tensor,
    following: Tensor,
    terminated: TensorLike,
    truncated: TensorLike,
    gamma: float,
    n: int,
) -> Tensor:
    """n rewards, then the value of where they led; fewer where the episode or the rollout ends before.

    Only n steps are looked ahead, so a program keeps no more of them.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, v = pr.input("r", (), (t,)), pr.input("v", (), (t,))
    >>> pr.evaluate(n_step(t, r, v, False, False, 0.5, 2), {"r": [1, 2, 4], "v": [8, 8, 8]}).tolist()
    [4.0, 6.0, 8.0]
    """
    last, ended = bound_of(t) - 1, _ended(terminated, truncated)
    own = reward + gamma * _weight(terminated, reward) * following
    total = own
    for _ in range(n - 1):
        total = where(t < last, where(ended, own, reward + gamma * total[{t: t + 1}]), own)
    return total


def td_lambda(
    t: Dim,
    reward: Tensor,
    following: Tensor,
    terminated: TensorLike,
    truncated: TensorLike,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """TD(λ): the mean of all n-step returns, the one of n steps weighted by `lambda_ ** (n - 1)` (Sutton, 1988).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, v = pr.input("r", (), (t,)), pr.input("v", (), (t,))
    >>> pr.evaluate(td_lambda(t, r, v, False, False, 1.0, 0.5), {"r": [1, 2], "v": [8, 8]}).tolist()
    [10.0, 10.0]
    """
    alive, lasting = _weight(terminated, reward), _weight(_ended(terminated, truncated), reward)
    own = reward + gamma * alive * following
    # Where the episode goes on, a share `lambda_` of the value is replaced by the return from there.
    return backwards(t, own - gamma * lambda_ * lasting * following, gamma * lambda_ * lasting, own)


def gae(
    t: Dim,
    reward: Tensor,
    value: Tensor,
    following: Tensor,
    terminated: TensorLike,
    truncated: TensorLike,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantages: TD(λ) less the value of where one stands (Schulman et al., 2016).

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, v = pr.input("r", (), (t,)), pr.input("v", (), ((t, T + 1),))
    >>> pr.evaluate(gae(t, r, v, v[t + 1], False, False, 1.0, 0.5), {"r": [1, 2], "v": [3, 8, 8]}).tolist()
    [7.0, 2.0]
    """
    error = reward + gamma * _weight(terminated, reward) * following - value
    return backwards(t, error, gamma * gae_lambda * _weight(_ended(terminated, truncated), reward))


class VTrace(NamedTuple):
    """What V-trace gives: targets for the value, and advantages for the policy gradient."""

    target: Tensor
    advantage: Tensor


def vtrace(
    t: Dim,
    reward: Tensor,
    value: Tensor,
    following: Tensor,
    ratio: Tensor,
    terminated: TensorLike,
    truncated: TensorLike,
    gamma: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al., 2018): returns of a policy other than the one that acted.

    `ratio` is how much likelier the learning policy makes the action than the acting one: `exp(log pi - log mu)`.
    It is clipped to `rho_clip` in the errors and in the advantages, and to `c_clip` in the trace.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, v, rho = (pr.input(name, (), (t,)) for name in ("r", "v", "rho"))
    >>> given = {"r": [1, 2], "v": [0, 0], "rho": [0.5, 4]}
    >>> pr.evaluate(vtrace(t, r, v, v, rho, False, False, 1.0).target, given).tolist()
    [1.5, 2.0]
    """
    alive, lasting = _weight(terminated, reward), _weight(_ended(terminated, truncated), reward)
    rho, c = minimum(ratio, rho_clip), lambda_ * minimum(ratio, c_clip)
    error = rho * (reward + gamma * alive * following - value)
    correction = backwards(t, error, gamma * lasting * c)
    # The advantage looks one step ahead to the corrected value, where the episode goes on to one.
    ahead = where(t < bound_of(t) - 1, lasting * lambda_ * correction[{t: t + 1}], 0.0)
    return VTrace(value + correction, error + rho * gamma * ahead)


def retrace(
    t: Dim,
    reward: Tensor,
    q: Tensor,
    following: Tensor,
    ratio: Tensor,
    terminated: TensorLike,
    truncated: TensorLike,
    gamma: float,
    lambda_: float = 1.0,
) -> Tensor:
    """Retrace(λ) (Munos et al., 2016): targets for the action value `q` of what was done.

    `following` is the expected action value of where a step led, under the policy that learns; `ratio` as in `vtrace`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> r, q, v, rho = (pr.input(name, (), (t,)) for name in ("r", "q", "v", "rho"))
    >>> given = {"r": [1, 2], "q": [0, 1], "v": [4, 4], "rho": [0, 0.5]}
    >>> pr.evaluate(retrace(t, r, q, v, rho, False, False, 1.0), given).tolist()
    [7.5, 6.0]
    """
    own = reward + gamma * _weight(terminated, reward) * following
    lasting, c = _weight(_ended(terminated, truncated), reward), lambda_ * minimum(ratio, 1.0)
    inside = t < bound_of(t) - 1
    trace = gamma * lasting * where(inside, c[{t: t + 1}], 0.0)
    return backwards(t, own - trace * where(inside, q[{t: t + 1}], 0.0), trace, own)


def backwards(t: Dim, own: Tensor, factor: TensorLike, last: Tensor | None = None) -> Tensor:
    """`y[t] = own + factor * y[t + 1]`, from the last step back; there it is `last`, or `own`.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> pr.evaluate(backwards(t, pr.input("x", (), (t,)), 0.5), {"x": [1, 2, 4]}).tolist()
    [3.0, 4.0, 4.0]
    """
    # Over T steps, whatever the operands have: a constant reward has none, what states alone decide one more.
    y = Recurrent(union([own.spans, as_tensor(factor).spans], [t.symbol]), own.type, None)
    end = bound_of(t) - 1
    y[t == end] = own if last is None else last
    y[t < end] = own + factor * y[{t: t + 1}]
    return y


def _ended(terminated: TensorLike, truncated: TensorLike) -> Tensor:
    return as_tensor(terminated) | as_tensor(truncated)


def _weight(ended: TensorLike, like: Tensor) -> Tensor:
    """1 where something follows, 0 at an end."""
    return 1.0 - as_tensor(ended).cast(like.dtype)
