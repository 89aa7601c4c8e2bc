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
from polyrhythm.rl.actors import DeterministicActor, StochasticActor
from polyrhythm.rl.asynchronous import Async
from polyrhythm.rl.distributional import c51, qr_dqn
from polyrhythm.rl.distributions import Bernoulli, Categorical, MultiCategorical, Normal, SquashedNormal, Uniform
from polyrhythm.rl.dqn import Settings as DQNSettings
from polyrhythm.rl.dqn import dqn
from polyrhythm.rl.environments import (
    Acrobot,
    Breakout,
    CartPole,
    Catch,
    Environment,
    Functional,
    GridWorld,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    Recall,
    Synthetic,
    advance,
    begin,
    brax,
    gymnax,
)
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.impala import Settings as ImpalaSettings
from polyrhythm.rl.impala import impala
from polyrhythm.rl.memory import Acting, Cells, Learning, Transformer
from polyrhythm.rl.networks import Encoder
from polyrhythm.rl.normalization import ClippedReward, Normalized
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.ppo import Settings as PPOSettings
from polyrhythm.rl.ppo import ppo
from polyrhythm.rl.reinforce import Settings as ReinforceSettings
from polyrhythm.rl.reinforce import reinforce
from polyrhythm.rl.replay import Replay, Transitions, prioritised
from polyrhythm.rl.returns import VTrace, gae, monte_carlo, n_step, retrace, td_lambda, vtrace
from polyrhythm.rl.running import Arrays, Source, Steps, carried, episodes
from polyrhythm.rl.sac import Settings as SACSettings
from polyrhythm.rl.sac import SoftActorCritic, sac
from polyrhythm.rl.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from polyrhythm.rl.td3 import DDPGSettings, DeterministicActorCritic, ddpg, td3
from polyrhythm.rl.td3 import Settings as TD3Settings
from polyrhythm.rl.threads import threaded
from polyrhythm.rl.training import Training
from polyrhythm.rl.values import Critics, QNetwork, copied, polyak

__all__ = [
    "A2CSettings",
    "Acrobot",
    "Acting",
    "ActorCritic",
    "Arrays",
    "Async",
    "Bernoulli",
    "Box",
    "Breakout",
    "CartPole",
    "Catch",
    "Categorical",
    "Cells",
    "ClippedReward",
    "Critics",
    "DDPGSettings",
    "DQNSettings",
    "DeterministicActor",
    "DeterministicActorCritic",
    "Discrete",
    "Encoder",
    "Environment",
    "Functional",
    "GridWorld",
    "Gym",
    "ImpalaSettings",
    "Learning",
    "MountainCar",
    "MountainCarContinuous",
    "MultiBinary",
    "MultiCategorical",
    "MultiDiscrete",
    "Normal",
    "Normalized",
    "PPOSettings",
    "Pendulum",
    "QNetwork",
    "Recall",
    "ReinforceSettings",
    "Replay",
    "SACSettings",
    "SoftActorCritic",
    "Source",
    "SquashedNormal",
    "Steps",
    "StochasticActor",
    "Synthetic",
    "TD3Settings",
    "Training",
    "Transformer",
    "Transitions",
    "Uniform",
    "VTrace",
    "a2c",
    "advance",
    "begin",
    "brax",
    "c51",
    "carried",
    "copied",
    "ddpg",
    "dqn",
    "episodes",
    "gae",
    "gymnax",
    "impala",
    "monte_carlo",
    "n_step",
    "polyak",
    "ppo",
    "prioritised",
    "qr_dqn",
    "reinforce",
    "retrace",
    "sac",
    "td3",
    "td_lambda",
    "threaded",
    "vtrace",
]
