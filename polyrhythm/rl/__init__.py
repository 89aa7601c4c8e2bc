"""Reinforcement learning: returns as formulae, environments, and algorithms that are one program each.

>>> import polyrhythm as pr
>>> from polyrhythm import rl
>>> t, T = pr.dim("t")
>>> r = pr.input("r", (), (t,))
>>> pr.evaluate(rl.monte_carlo(t, r, False, False, 0.5), {"r": [1, 2, 4]}).tolist()
[3.0, 4.0, 4.0]
"""

from polyrhythm.rl.a2c import Settings as A2CSettings
from polyrhythm.rl.a2c import a2c
from polyrhythm.rl.environments import CartPole, Continuous, Discrete, Environment, Pendulum, Synthetic
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.policies import ActorCritic, Categorical, Normal
from polyrhythm.rl.ppo import Settings as PPOSettings
from polyrhythm.rl.ppo import ppo
from polyrhythm.rl.reinforce import Settings as ReinforceSettings
from polyrhythm.rl.reinforce import reinforce
from polyrhythm.rl.returns import gae, monte_carlo, n_step, td_lambda
from polyrhythm.rl.running import Arrays, Source, Steps, episodes
from polyrhythm.rl.training import Training

__all__ = [
    "A2CSettings",
    "ActorCritic",
    "Arrays",
    "CartPole",
    "Categorical",
    "Continuous",
    "Discrete",
    "Environment",
    "Gym",
    "Normal",
    "PPOSettings",
    "Pendulum",
    "ReinforceSettings",
    "Source",
    "Steps",
    "Synthetic",
    "Training",
    "a2c",
    "episodes",
    "gae",
    "monte_carlo",
    "n_step",
    "ppo",
    "reinforce",
    "td_lambda",
]
