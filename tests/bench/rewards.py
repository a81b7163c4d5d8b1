"""The mathematical rewards against known verdicts, and their time against bare math-verify.

Verdicts: the published flags of 5,276 GSM8K solutions of four models, and the labelled pairs of
``math_pairs``: ``answer`` is what stands in the response's box, ``right`` whether it has the value
of ``truth``. ``own.jsonl`` was written with the code, ``outside.jsonl`` and the tables of
``verdicts`` by others who had not seen it.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rlcore.rewards import gsm8k, math_answer
from rlcore.rewards.types import RewardRow, Scorer
from schemas.errors import UserError
from tests.bench.measures import Measure
from tests.inputs import GSM8K

SOLUTIONS = GSM8K / "example_model_solutions.jsonl"
FLAGS = 5276
PAIRS = Path(__file__).parent / "math_pairs"
VERDICTS = Path(__file__).parent / "verdicts"
KINDS = (
    *("sign", "factor", "set", "interval", "unit"),
    *("fraction", "percent", "root", "tuple", "text"),
)
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer and whether it has the value of the ground truth."""

    kind: str
    truth: str
    answer: str
    right: bool

    @property
    def response(self) -> str:
        return f"So the answer is $\\boxed{{{self.answer}}}$."


def measures() -> list[Measure]:
    """Return the figures of this benchmark; about a minute."""
    if not SOLUTIONS.is_file():
        raise UserError(f"{SOLUTIONS} does not exist; set GSM8K_DIR to the folder that holds it")
    found = [
        Measure(f"flags met by {name}", FLAGS - len(disagreed(scorer)), least=FLAGS)
        for name, scorer in (("gsm8k", gsm8k.scorer("numeric")), ("math", math_answer.scorer()))
    ]
    pairs = read_pairs()
    verdicts = [(pair, paid(pair)) for pair in pairs]
    for kind in KINDS:
        paid_of_kind = [verdict for pair, verdict in verdicts if pair.kind == kind and pair.right]
        number = sum(pair.kind == kind for pair in pairs)
        note = f"{sum(paid_of_kind)} of {len(paid_of_kind)} right ones paid"
        found.append(Measure(f"pairs: {kind}", number, least=20, note=note))
    right = [verdict for pair, verdict in verdicts if pair.right]
    wrong = [verdict for pair, verdict in verdicts if not pair.right]
    found += [
        Measure("pairs", len(pairs), least=300),
        Measure("wrong ones paid", sum(wrong), most=0),
        Measure("share of right ones paid", sum(right) / len(right), least=0.98),
    ]
    for name in ("math", "gsm8k"):
        paid_wrong, refused, wrong, right = misjudged(name)
        note = f"of {wrong} wrong ones, beside {right} right ones"
        found += [
            Measure(f"verdicts of {name}: wrong ones paid", len(paid_wrong), most=0, note=note),
            Measure(
                f"verdicts of {name}: share of right ones refused", len(refused) / right, most=0.02
            ),
        ]
    return [*found, *timings(pairs)]


def misjudged(name: str) -> tuple[list[Pair], list[Pair], int, int]:
    """Return which pairs of a table of verdicts a reward pays though wrong and refuses though
    right, and how many there are of both. ``name``: math, or gsm8k for its mode numeric."""
    lines = (VERDICTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [Pair(**json.loads(line)) for line in lines]
    pays = paid if name == "math" else _paid_after_the_mark
    found = {True: list[Pair](), False: list[Pair]()}
    for pair in pairs:
        if pays(pair) is not pair.right:
            found[pair.right].append(pair)
    right = sum(pair.right for pair in pairs)
    return found[False], found[True], len(pairs) - right, right


def _paid_after_the_mark(pair: Pair) -> bool:
    row = RewardRow("t", "gsm8k", f"So.\n#### {pair.answer}", pair.truth, {}, "stop", 1)
    return gsm8k.scorer("numeric")(row).score == 1.0


def disagreed(score: Scorer) -> list[str]:
    """Return the ends of the published solutions on whose flag ``score`` does not agree.

    Raises UserError unless there are as many as were published.
    """
    ends, rows = [], list(published())
    if len(rows) != FLAGS:
        raise UserError(f"{SOLUTIONS} holds {len(rows)} solutions, not {FLAGS}; fetch it again")
    for response, truth, correct in rows:
        row = RewardRow("t", "openai/gsm8k", response, truth, {}, "stop", 1)
        if score(row).correct is not correct:
            ends.append(response[-80:])
    return ends


def published() -> Iterator[tuple[str, str, bool]]:
    """Yield solution, ground truth and flag; "A:" is written "####", as in the data set itself."""
    for line in SOLUTIONS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        truth = row["ground_truth"].rpartition("A: ")[2].replace(",", "").strip()
        for solution in (value for value in row.values() if isinstance(value, dict)):
            text = solution["solution"].replace("\nA: ", "\n#### ")
            yield text, truth, solution["is_correct"]


def read_pairs() -> list[Pair]:
    """Return the pairs of all files, in order of file and line."""
    lines = [line for path in sorted(PAIRS.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    return [Pair(**json.loads(line)) for line in lines]


def paid(pair: Pair) -> bool:
    """Return whether the reward ``math`` pays the answer."""
    row = RewardRow("t", "math", pair.response, pair.truth, {}, "stop", 1)
    return math_answer.scorer()(row).score == 1.0


def timings(pairs: Sequence[Pair]) -> list[Measure]:
    """Return the time per pair of the reward and of bare math-verify, and their ratio.

    Both in this process, in turn, the first one alternating, each from empty caches: what another
    process takes of the machine in the meantime is in both.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    calls: list[tuple[str, Callable[[Pair], bool]]] = [("math", paid), ("bare", _bare)]
    for call in (paid, _bare):  # imports, compiled patterns and grammars
        call(pairs[0])
    for turn in range(ROUNDS):
        total: dict[str, float] = defaultdict(float)
        for index, pair in enumerate(pairs):
            for name, call in calls if (turn + index) % 2 else reversed(calls):
                _forget()
                start = time.perf_counter()
                call(pair)
                total[name] += time.perf_counter() - start
        for name, taken in total.items():
            seconds[name].append(taken / len(pairs))
    ratios = [a / b for a, b in zip(seconds["math"], seconds["bare"], strict=True)]
    return [
        Measure("ms per row", round(1000 * median(seconds["math"]), 2)),
        Measure("ms per row of bare math-verify", round(1000 * median(seconds["bare"]), 2)),
        Measure("time over bare math-verify", round(median(ratios), 3), most=1.2),
    ]


def _bare(pair: Pair) -> bool:
    from math_verify import parse, verify

    truth = parse(f"$\\boxed{{{pair.truth}}}$", parsing_timeout=0)
    return verify(truth, parse(pair.response, parsing_timeout=0), timeout_seconds=None)


def _forget() -> None:
    """Empty the caches that one call would leave for the next."""
    from math_verify import parser
    from sympy.core.cache import clear_cache

    parser.parse_latex_cached.cache_clear()
    parser.extract_latex.cache_clear()
    parser.parse_expr_cached.cache_clear()
    clear_cache()
