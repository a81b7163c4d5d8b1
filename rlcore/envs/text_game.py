"""A text game without a model download: find the key in a row of rooms, then the door.

Small enough that a model of 0.4 M parameters learns it from scratch, and an episode that needs a
memory of what was said: a room's door is locked until the key was taken.
"""

import random
from collections.abc import Mapping
from typing import Any

from rlcore.envs.types import Start, Step

_STEP_COST = 0.02  # per turn, so that a shorter way is better


class TextGame:
    """Rooms in a row; the actions are ``left``, ``right``, ``take`` and ``open``.

    ``rooms``: how many. ``mistakes``: share of the turns of its demonstrations that waste a turn.
    The episode's reward is 1 for the opened door, less a little per turn.
    """

    def __init__(self, rooms: int = 4, mistakes: float = 0.3) -> None:
        self._rooms, self._mistakes = rooms, mistakes
        self._at = self._key = self._door = 0
        self._has_key = False

    def reset(self, row: Mapping[str, Any], seed: int) -> Start:
        """Return the first view of the game of ``seed``."""
        draw = random.Random(seed)
        self._at, self._key, self._door = (draw.randrange(self._rooms) for _ in range(3))
        self._has_key = False
        number = draw.randrange(10**6)
        return Start([{"role": "user", "content": f"Game {number}. {self._view()}"}])

    def step(self, text: str) -> Step:
        """Do what ``text`` says; anything but an action is invalid, and changes nothing."""
        action = text.strip()
        if action not in ("left", "right", "take", "open"):
            view = f"Say left, right, take or open. {self._view()}"
            return Step([{"role": "user", "content": view}], reward=-_STEP_COST, valid=False)
        if action == "open" and self._at == self._door and self._has_key:
            return Step(reward=1.0 - _STEP_COST, done=True)
        if action == "take" and self._at == self._key:
            self._has_key = True
        if action in ("left", "right"):
            moved = self._at + (1 if action == "right" else -1)
            self._at = min(max(moved, 0), self._rooms - 1)
        return Step([{"role": "user", "content": self._view()}], reward=-_STEP_COST)

    def demonstration(self, seed: int) -> list[dict[str, str]]:
        """Return a game of ``seed`` that is won, with wasted turns."""
        messages = [dict(message) for message in self.reset({}, seed).messages]
        draw = random.Random(seed + 1)
        while True:
            action = self._best()
            if draw.random() < self._mistakes:
                action = draw.choice(("left", "right", "take", "open"))
            messages.append({"role": "assistant", "content": action})
            step = self.step(action)
            if step.done:
                return messages
            messages += [dict(message) for message in step.messages]

    def _best(self) -> str:
        goal = self._door if self._has_key else self._key
        if self._at == goal:
            return "open" if self._has_key else "take"
        return "right" if self._at < goal else "left"

    def _view(self) -> str:
        places = {"door": self._door, "key": None if self._has_key else self._key}
        things = [name for name, room in places.items() if room == self._at]
        side = {0: "left end", self._rooms - 1: "right end"}.get(self._at, "middle")
        seen = " and ".join(f"a {thing}" for thing in things) or "nothing"
        held = "the key" if self._has_key else "nothing"
        return f"Room {self._at}, {side}. You see {seen}. You hold {held}."
