"""Log-probs of a vocabulary of 151,936 beside a log-softmax over all of it, forward and backward.

Each form runs in a process of its own, so that its largest resident set is its own; the forms
alternate, and times are the best of ``TRIES``. fp32 on all threads that torch takes; hidden size
and vocabulary are those of Qwen2.5-0.5B. An idle machine with 6 GiB of free memory is assumed.

python -m tests.bench.logprobs blocks|naive TOKENS    # what one form comes to, as JSON
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from rlcore.models.architectures import FinalLogits
from rlcore.models.logprobs import BlockedScores, plain_weight
from tests.bench.measures import Measure

VOCABULARY, HIDDEN = 151_936, 896
FITTING, LONG = 2_048, 8_192  # tokens: where the naive form still fits, and where it does not
TRIES = 3
SLOWER, PEAK_GIB, DIFFERENCE = 1.3, 1.0, 1e-4
GIB = 2**30


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about three minutes."""
    runs = [(_run("blocks", FITTING), _run("naive", FITTING)) for _ in range(TRIES)]
    ours, naive = ([pair[side] for pair in runs] for side in (0, 1))
    seconds, theirs = (min(run["seconds"] for run in form) for form in (ours, naive))
    differences = [abs(ours[0][key] / naive[0][key] - 1) for key in ("logprobs", "gradient")]
    return [
        Measure(f"{FITTING} tokens, s", seconds),
        Measure(f"{FITTING} tokens, naive, s", theirs),
        Measure(f"{FITTING} tokens, time over naive", seconds / theirs, most=SLOWER),
        Measure(f"{FITTING} tokens, peak, GiB", max(run["peak"] for run in ours), most=PEAK_GIB),
        Measure(f"{FITTING} tokens, naive, peak, GiB", max(run["peak"] for run in naive)),
        Measure(f"{LONG} tokens, peak, GiB", _run("blocks", LONG)["peak"], most=PEAK_GIB),
        Measure("relative difference of sums", max(differences), most=DIFFERENCE),
    ]


def _run(form: str, tokens: int) -> dict[str, float]:
    """Return what a process of its own says of ``form``."""
    command = [sys.executable, "-m", __spec__.name, form, str(tokens)]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(said)


def _figures(form: str, tokens: int) -> dict[str, float]:
    """Return the seconds and the peak of one forward and backward pass, GiB over the weight and its
    gradient, and two sums of what came out."""
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    target_ids = torch.randint(0, VOCABULARY, (tokens,))
    upstream = torch.linspace(-1, 2, tokens)
    (torch.ones(512, 512) @ torch.ones(512, 512)).sum()  # starts the threads
    before = _resident_bytes()
    began = time.perf_counter()
    if form == "naive":
        log_softmax = torch.log_softmax(head(hidden), dim=-1)
        logprobs = log_softmax.gather(-1, target_ids[:, None]).squeeze(-1)
        del log_softmax
    else:
        weight = plain_weight(head)
        assert weight is not None, "a plain head"
        logprobs, _ = BlockedScores.apply(hidden, weight, target_ids, 1.0, None, FinalLogits())
    (logprobs * upstream).sum().backward()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert hidden.grad is not None
    assert head.weight.grad is not None
    gradients = [hidden.grad.double().norm(), head.weight.grad.double().norm()]
    return {
        "seconds": seconds,
        "peak": (peak - before - head.weight.nbytes) / GIB,
        "logprobs": float(logprobs.detach().double().sum()),
        "gradient": float(torch.stack(gradients).norm()),
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    print(json.dumps(_figures(sys.argv[1], int(sys.argv[2]))))
