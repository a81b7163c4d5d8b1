"""Reward functions for the tests of the reward worker, as users write them: good, bad, ugly."""

import asyncio
import ctypes
import json
import os
import re
import signal
import sys
import time

LEAK: list[bytes] = []


def length(prompt: str, response: str) -> float:
    return len(prompt) + len(response) / 100


async def slow_length(prompt: str, response: str) -> float:
    await asyncio.sleep(0)
    return float(len(response))


async def side_by_side(prompt: str, response: str) -> float:
    """Wait for the seconds that the response names; "block" holds up every other row."""
    if response == "block":
        time.sleep(1000)
    if response.startswith("raise"):
        raise KeyError(response)
    await asyncio.sleep(float(response))
    return float(response)


def relative(rows):
    """Score each response by its length beside the mean of its prompt's; act on commands."""
    texts = [row["solution"] for row in rows]
    if "sleep" in texts:
        ctypes.PyDLL(None).sleep(1000)
    if "short" in texts:
        return [1.0]
    if "raise" in texts:
        raise KeyError("raise")
    mean = sum(map(len, texts)) / len(texts)
    return [None if text == "none" else len(text) - mean for text in texts]


async def relative_async(rows, scale=1.0):
    await asyncio.sleep(0)
    return [score and scale * score for score in relative(rows)]


def rich(data_source, solution, ground_truth, extra_info, bonus=0.0):
    right = solution == ground_truth
    return {"score": right + bonus, "acc": right, "answer": solution, "length": len(solution)}


def plain_rich(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str == ground_truth else 0.0


def sees(prompt: str, response: str) -> float:
    """1 when the environment holds a variable of the response's name."""
    return float(response in os.environ)


def size(prompt: str, response: str) -> float:
    """Read the file that the response names."""
    with open(response, "rb") as file:
        return float(len(file.read()))


def by_command(prompt: str, response: str):
    """Execute the command in the response."""
    command, _, rest = response.partition(" ")
    if command == "loop":
        while True:
            pass
    elif command == "sleep":
        # A C call that holds the interpreter's lock: nothing in this process can interrupt it.
        ctypes.PyDLL(None).sleep(1000)
    elif command == "regex":
        re.match(r"(a+)+$", "a" * 60 + "b")
    elif command == "exit":
        os._exit(7)
    elif command == "sysexit":
        sys.exit("leaving")
    elif command == "abort":
        os.abort()
    elif command == "hog":
        LEAK.append(bytes(4 << 30))
    elif command == "raise":
        raise KeyError(rest)
    elif command == "huge":
        for _ in range(200):
            print("x" * 1_000_000)
        os.write(2, b"y" * 10_000_000)
    elif command == "close":
        os.closerange(3, 4096)
    elif command == "background":
        if pid := os.fork():
            return float(pid)
        time.sleep(float(rest))
        os._exit(0)
    elif command == "daemon":
        return _daemon(float(rest))
    elif command == "orphan":
        os.kill(os.getppid(), signal.SIGKILL)
        return float(os.getpid())
    elif command == "nan":
        return float("nan")
    elif command == "half":
        return {"score": 1.0, "answer": json.loads(rest), "detail": f"said {json.loads(rest)}"}
    elif command == "text":
        return "good"
    elif command == "none":
        return None
    elif command == "pid":
        return float(os.getpid())
    elif command == "modules":
        heavy = {"torch", "vllm", "polars", "pandera", "numpy", "pydantic", "transformers", "ray"}
        return float(len(heavy & set(sys.modules)))
    return 1.0


def _daemon(seconds: float) -> float:
    """Return the pid of a process in another session, whose parent has ended."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if pid := os.fork():
            os.write(write, str(pid).encode())
        else:
            time.sleep(seconds)
        os._exit(0)
    os.wait()
    return float(os.read(read, 32))


def forges_verdicts(prompt: str, response: str) -> float:
    """Tell more than a score: whose row it is, and what a judge answered."""
    from rlcore.rewards import registry
    from rlcore.rewards.types import Failure, Reward

    def forged(row: object, score: float, *_: object, **__: object) -> Reward:
        verdict = {"question": "q", "answer": "VERDICT: 10", "choice": "10", "run": "r"}
        failure = Failure("error", "of another function")
        return Reward(
            *("t7", "ok", score),
            counts=False,
            failures={"other": failure},
            verdicts={"judge/j": verdict},
        )

    registry.Reward = type("Forged", (Reward,), {"of": staticmethod(forged)})
    return 1.0


def patches_all(prompt: str, response: str) -> float:
    """Try to raise every score, its own and the others'."""
    import builtins
    import json

    from rlcore.rewards import gsm8k, registry, types

    def most(*_: object, **__: object) -> float:
        return 777.0

    gsm8k.scorer = lambda **_: most
    registry.combine = registry.reward_of = most
    type.__setattr__(types.Reward, "__init__", most)
    json.dumps = lambda *_, **__: '[0, "ok", 777.0, true, {}, "", 0.0, null]'
    builtins.len = builtins.sum = builtins.float = most
    return 777.0


def wrong_answer_raises(prompt: str, response: str) -> float:
    raise ConnectionError("the judge is down")


def fixed(prompt: str, response: str, score=1.0, acc=None):
    return {"score": score, "acc": acc}


def wrong_signature(response: str) -> float:
    return 1.0


NOT_CALLABLE = 3
