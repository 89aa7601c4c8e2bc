"""Array environments: ordinary functions of tensors, compiled into the program."""

from polyrhythm.rl.environments.base import AGE, Advance, Environment, State, advance, begin
from polyrhythm.rl.environments.boards import Breakout, Catch, GridWorld, Recall
from polyrhythm.rl.environments.classic import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from polyrhythm.rl.environments.functional import Functional, brax, gymnax
from polyrhythm.rl.environments.synthetic import Synthetic

__all__ = [
    "AGE",
    "Acrobot",
    "Advance",
    "Breakout",
    "CartPole",
    "Catch",
    "Environment",
    "Functional",
    "GridWorld",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Recall",
    "State",
    "Synthetic",
    "advance",
    "begin",
    "brax",
    "gymnax",
]
