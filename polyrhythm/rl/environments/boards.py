"""Small games on boards, drawn as images: Catch, a grid world, MinAtar's Breakout, and a test of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyrhythm.language.functions import (
    clip,
    constant,
    maximum,
    minimum,
    one_hot,
    ones,
    randint,
    stack,
    take,
    where,
    zeros,
)
from polyrhythm.language.index import Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.rl.environments.base import State
from polyrhythm.rl.spaces import Box, Discrete


@dataclass(frozen=True)
class Catch:
    """A ball falls, one row per step; a paddle in the last row moves left (0), stays (1) or moves right (2).

    At the bottom the reward is 1 if the paddle is there, -1 if not. The rules are bsuite's.

    >>> import polyrhythm as pr
    >>> game = Catch()
    >>> state = {"ball": pr.constant([[8, 2]]), "paddle": pr.constant([1])}
    >>> _, reward, terminated = game.step(state, pr.constant([2]))
    >>> pr.evaluate((reward, terminated))
    (array([1.], dtype=float32), array([ True]))
    """

    rows: int = 10
    columns: int = 5
    actions = Discrete(3)

    @property
    def observations(self) -> Box:
        """A board of zeros with two ones, as one vector."""
        return Box((self.rows * self.columns,), 0.0, 1.0)

    @property
    def limit(self) -> int:
        """The ball ends the episode before."""
        return self.rows

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """The ball somewhere in the first row, the paddle in the middle."""
        column = randint((count,), 0, self.columns, dims=dims, name=name)
        return {"ball": stack([0 * column, column], 1), "paddle": zeros((count,), "int32") + self.columns // 2}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The paddle moves, then the ball falls."""
        paddle = clip(state["paddle"] + action.cast("int32") - 1, 0, self.columns - 1)
        row, column = state["ball"].axes[:, 0] + 1, state["ball"].axes[:, 1]
        terminated = row == self.rows - 1
        reward = where(terminated, where(paddle == column, 1.0, -1.0), 0.0)
        return {"ball": stack([row, column], 1), "paddle": paddle}, reward, terminated

    def observe(self, state: State) -> Tensor:
        """The board."""
        size = self.rows * self.columns
        ball = state["ball"].axes[:, 0] * self.columns + state["ball"].axes[:, 1]
        return maximum(one_hot(ball, size), one_hot(state["paddle"] + (self.rows - 1) * self.columns, size))


@dataclass(frozen=True)
class GridWorld:
    """Walk up (0), right (1), down (2) or left (3) on a square, from a random cell to a random goal.

    The reward is 1 at the goal, where the episode ends, and `-cost` for any other step.

    >>> import polyrhythm as pr
    >>> state = {"agent": pr.constant([[1, 0]]), "goal": pr.constant([[0, 0]])}
    >>> pr.evaluate(GridWorld(3).step(state, pr.constant([0]))[1:])
    (array([1.], dtype=float32), array([ True]))
    """

    size: int = 5
    cost: float = 0.01
    limit: int = 50
    actions = Discrete(4)

    @property
    def observations(self) -> Box:
        """Two boards: where one is, and where the goal is."""
        return Box((2, self.size, self.size), 0.0, 1.0)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """Two different cells."""
        cells = self.size * self.size
        drawn = randint((count, 2), 0, constant(np.array([cells, cells - 1])), dims=dims, name=name)
        agent, other = drawn.axes[:, 0], drawn.axes[:, 1]
        goal = where(other >= agent, other + 1, other)
        return {"agent": self._cell(agent), "goal": self._cell(goal)}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Walls stop one."""
        move = take(constant(np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)), action, 0)
        agent = clip(state["agent"] + move, 0, self.size - 1)
        there = (agent == state["goal"]).all(-1)
        return {"agent": agent, "goal": state["goal"]}, where(there, 1.0, -self.cost), there

    def observe(self, state: State) -> Tensor:
        """The two boards."""
        return stack([self._board(state[name]) for name in ("agent", "goal")], 1)

    def _cell(self, number: Tensor) -> Tensor:
        return stack([number // self.size, number % self.size], 1)

    def _board(self, cell: Tensor) -> Tensor:
        rows, columns = (one_hot(cell.axes[:, k], self.size) for k in range(2))
        return rows.axes[:, :, None] * columns.axes[:, None, :]


@dataclass(frozen=True)
class Recall:
    """A test of memory: a cue is shown at the first step, and asked for after a delay.

    The reward is 1 if the last action is the cue, and -1 if not. What is seen in between says nothing of it: without
    a memory no policy gets more than it does by chance.

    >>> import polyrhythm as pr
    >>> state = {"cue": pr.constant([2]), "time": pr.constant([4])}
    >>> pr.evaluate(Recall(delay=4).step(state, pr.constant([2]))[1:])
    (array([1.], dtype=float32), array([ True]))
    """

    delay: int = 8
    cues: int = 4

    @property
    def actions(self) -> Discrete:
        """One for each cue."""
        return Discrete(self.cues)

    @property
    def observations(self) -> Box:
        """The cue while it is shown, and whether it is asked for."""
        return Box((self.cues + 1,), 0.0, 1.0)

    @property
    def limit(self) -> int:
        """The answer ends the episode before."""
        return self.delay + 2

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """A random cue."""
        return {"cue": randint((count,), 0, self.cues, dims=dims, name=name), "time": zeros((count,), "int32")}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Time goes on; only the last action counts."""
        asked = state["time"] == self.delay
        reward = where(asked, where(action == state["cue"], 1.0, -1.0), 0.0)
        return {"cue": state["cue"], "time": state["time"] + 1}, reward, asked

    def observe(self, state: State) -> Tensor:
        """The cue at the first step only."""
        shown = (state["time"] == 0).cast("float32").axes[:, None] * one_hot(state["cue"], self.cues)
        asked = (state["time"] == self.delay).cast("float32").axes[:, None]
        return stack([*(shown.axes[:, k] for k in range(self.cues)), asked.axes[:, 0]], 1)


@dataclass(frozen=True)
class Breakout:
    """MinAtar's Breakout (Young and Tian, 2019): a paddle, a ball and three rows of bricks on ten by ten cells.

    Stay (0), move left (1) or right (2). Each brick is worth 1; three new rows come when all are gone. The episode ends
    when the ball gets past the paddle. Channels last: paddle, ball, its trail, bricks.

    >>> import polyrhythm as pr
    >>> Breakout().observe(Breakout().reset(3)).shape
    (3, 10, 10, 4)
    """

    limit: int = 1000
    actions = Discrete(3)
    observations = Box((10, 10, 4), 0.0, 1.0)

    def reset(self, count: int, dims: Sequence[Dim] = (), name: str | None = None) -> State:
        """The ball comes down from the left or from the right."""
        right = randint((count,), 0, 2, dims=dims, name=name)
        ball = stack([0 * right + 3, 9 * right], 1)
        state = {"ball": ball, "last": ball, "way": 2 + right, "paddle": zeros((count,), "int32") + 4}
        return state | {"bricks": _new_bricks(count), "strike": zeros((count,), "bool")}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """The paddle moves, then the ball, diagonally: off walls, bricks and the paddle."""
        paddle = clip(state["paddle"] + where(action == 1, -1, where(action == 2, 1, 0)), 0, 9)
        old_y, old_x = state["ball"].axes[:, 0], state["ball"].axes[:, 1]
        way, bricks = state["way"], state["bricks"]
        # 0: up and left, 1: up and right, 2: down and right, 3: down and left.
        x = old_x + where((way == 1) | (way == 2), 1, -1)
        y = old_y + where(way >= 2, 1, -1)
        way = where((x < 0) | (x > 9), _turned(way, [1, 0, 3, 2]), way)
        x = clip(x, 0, 9)
        top = y < 0
        y = maximum(y, 0)
        cell = one_hot(y, 10).axes[:, :, None] * one_hot(x, 10).axes[:, None, :]
        hit = ~top & ((bricks * cell).sum((1, 2)) > 0.0)
        reward = where(hit & ~state["strike"], 1.0, 0.0)
        fresh_hit = hit & ~state["strike"]
        bricks = where(fresh_hit.axes[:, None, None], bricks * (1.0 - cell), bricks)
        bottom = ~top & ~hit & (y == 9)
        gone = bottom & (bricks.sum((1, 2)) == 0.0)
        bricks = where(gone.axes[:, None, None], _new_bricks(int(action.shape[0])), bricks)
        caught, edge = bottom & (old_x == paddle), bottom & (old_x != paddle) & (x == paddle)
        way = where(top | fresh_hit | caught, _turned(way, [3, 2, 1, 0]), where(edge, _turned(way, [2, 3, 0, 1]), way))
        y = where(fresh_hit | caught | edge, old_y, y)
        after = {"ball": stack([y, x], 1), "last": state["ball"], "way": way, "paddle": paddle}
        return after | {"bricks": bricks, "strike": hit}, reward, bottom & ~caught & ~edge

    def observe(self, state: State) -> Tensor:
        """Four boards."""
        row = zeros((state["paddle"].shape[0],), "int32") + 9
        paddle = one_hot(row, 10).axes[:, :, None] * one_hot(state["paddle"], 10).axes[:, None, :]
        ball, trail = (_place(state[name]) for name in ("ball", "last"))
        return stack([paddle, ball, trail, state["bricks"]], -1)


def _new_bricks(count: int) -> Tensor:
    rows = np.zeros((1, 10, 10), np.float32)
    rows[:, 1:4] = 1.0
    return ones((count, 1, 1)) * constant(rows)


def _turned(way: Tensor, table: Sequence[int]) -> Tensor:
    return take(constant(np.array(table, np.int32)), way, 0)


def _place(cell: Tensor) -> Tensor:
    rows, columns = (one_hot(minimum(cell.axes[:, k], 9), 10) for k in range(2))
    return rows.axes[:, :, None] * columns.axes[:, None, :]
