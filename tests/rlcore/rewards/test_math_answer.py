"""Mathematical answers are compared by value; a substring is no proof."""

import pytest

from rlcore.rewards.boxed import final_answers
from rlcore.rewards.math_answer import scorer
from rlcore.rewards.types import Reward, RewardRow
from rlcore.rewards.worker import RewardWorker
from schemas.errors import UserError
from schemas.rl import RewardFunction, RewardSection

CASES = [
    ("2", "x = 12", False),
    ("2", "I get 2.", True),
    ("2", "first 2, in the end 3", False),
    ("2", r"so 3 + 4 = 7 and \boxed{2}", True),
    ("2", r"\boxed{2} or rather \boxed{12}", False),
    ("x = 2", "2x = 4\nx = 2", True),
    ("x = 2", "The answer is 2", True),
    ("x = 2", r"\boxed{x=12}", False),
    ("1/2", r"\boxed{\frac{1}{2}}", True),
    ("0.5", "#### 1/2", True),
    ("1,000", "Answer: 1000", True),
    ("5050", "The sum is $5050$.", True),
    ("x = 1, x = 3", r"\boxed{1, 3}", True),
    ("x = 1 or x = 3", r"\boxed{x = 3}", False),
    ("Paris", "The answer is paris.", True),
    ("Paris", r"\boxed{pairs}", False),
    ("Paris", "Paris is not it, the answer is Rome", False),
    ("(A)", r"\boxed{(A)}", True),
    ("(A)", r"\boxed{(B)}", False),
    ("(A)", r"\boxed{\textbf{(A)}\ 12}", True),
    ("A", "The answer is A. 12", True),
    ("A", r"\boxed{(B) 12}", False),
    ("A", r"\boxed{(A) or (B)}", False),
    ("A", r"\boxed{(A) 12 (B) 13}", False),
    ("A", r"\boxed{(A) B}", False),
    # A choice with what it denotes, which names no other choice and does not deny it.
    ("C", r"\boxed{C) Paris}", True),
    ("C", r"\boxed{\text{(C) Paris}}", True),
    ("C", "The answer is **C. A dog and a cat**.", True),
    ("C", "Answer: c) salt and pepper", True),
    ("C", r"\boxed{\text{Option C: Vitamin B}}", True),
    ("B", r"\boxed{(B) False}", True),
    ("B", r"\boxed{C) Paris}", False),
    ("C", r"\boxed{(C) is wrong}", False),
    ("C", "Answer: C. Rather (D)", False),
    ("C", "Answer: C) Paris, or D", False),
    ("C", "Answer: C: not it, but D.", False),
    ("C", r"\boxed{A) Rome B) Bonn C) Paris}", False),
    ("C", r"\boxed{C Paris}", False),
    ("2", "", False),
    ("2", r"\boxed{", False),
    ("2", r"\boxed{}", False),
    # A number somewhere in a text is not its value.
    ("1", "- 1", False),
    ("7", r"\log 7", False),
    ("7", "7!", False),
    ("7", "not 7", False),
    ("7", "#### not 7.", False),
    ("7", "It is not 7.", False),
    ("7", "7x", False),
    ("7", "> 7", False),
    ("7", r"\boxed{\neq 7}", False),
    ("4", "a < 4", False),
    # What is still the number.
    ("7", "The answer is 7.", True),
    ("7", "**7**", True),
    ("7", "The answer is **7** apples.", True),
    ("7", "The answer is $7$ apples.", True),
    ("7", r"The answer is \(7\) apples.", True),
    ("7", "The answer is **7** thousand.", False),
    ("7", "The answer is $7$ or eight.", False),
    # Minerva's prompt (arXiv 2206.14858, D.2) and what follows it, and no other second sentence.
    ("7", "Final Answer: The final answer is $7$. I hope it is correct.", True),
    ("(C)", "Final Answer: The final answer is (C) Paris. I hope it is correct.", True),
    ("7", "Final Answer: The final answer is $7$. I hope it is not.", False),
    ("7", "Final Answer: The final answer is $8$. I hope it is 7.", False),
    ("7", r"\boxed{7\text{ apples}}", True),
    ("18", "16 - 3 = 13\nA: 18", True),
    # A worked solution as the truth, as TRL's column "solution" of MATH and NuminaMath.
    (r"Now $x^2=4$, so it is $\boxed{5\text{ cm}}$.", r"\boxed{5 cm}", True),
    (r"Now $x^2=4$, so it is $\boxed{(1,2)}$.", "The answer is (1, 2).", True),
    (r"Now $x^2=4$, so it is $\boxed{[1,2)}$.", r"\boxed{[1,2]}", False),
    (r"He is from \boxed{\text{Paris}}.", "Answer: paris", True),
    (r"\boxed{3}? No, $x=\boxed{1}$ or $x=\boxed{2}$.", r"$\boxed{2}$ and $\boxed{1}$", True),
    # Marks on lines of their own, between the words and the answer.
    ("42", "**Final Answer:**\n\n42", True),
    ("42", "**Answer:**\n41\n42", False),
    ("42", "The final answer is:\n$$\n42\n$$", True),
    ("42", "The answer is:\n\\[\n42\n\\]", True),
    ("42", "Answer:\n```text\n42\n```", True),
    ("42", "The answer is\n\n---\n42", True),
    (r"\infty", "**Answer:**\n∞\nas said", True),
    ("1000", r"\boxed{1{,}000}", True),
    ("23", r"\boxed{2 3}", False),
    ("7", r"\boxed{7\text{ million}}", False),
    ("7", "The answer is 7 or 8.", False),
    ("10:30", r"\boxed{5:15}", False),
    (r"10:30 \text{ a.m.}", r"\boxed{10:30 \text{ p.m.}}", False),
    (r"10:30 \text{ a.m.}", r"\boxed{10:30\text{ AM}}", True),
    ("10:30", r"\boxed{10:3\%0}", False),
    ("3:4", r"\boxed{6:8}", True),
    (r"5\text{ cm}", r"\boxed{5\text{ m}}", False),
    (r"5\text{ m}", r"\boxed{500 cm}", True),
    (r"5\text{ m}", r"\boxed{5 m}", True),
    (r"2\sqrt{3}\text{ m}", r"\boxed{200\sqrt{3}\text{ cm}}", True),
    ("7m", r"\boxed{7n}", False),
    ("7m", r"\boxed{7}", False),
    (r"\$1{,}250", "#### 1250", True),
    ("$5$", r"\boxed{5}", True),
    ("xy(x+y)", r"\boxed{x^2y+xy^2}", True),
    ("x-y", r"\boxed{-(y-x)}", True),
    ("no", r"\boxed{on}", False),
    ("ab", r"\boxed{ba}", True),
    ("A", r"\boxed{a}", True),
    ("x", r"\boxed{X}", False),
    # Far from every limit.
    ("2^{2020}", r"\boxed{4^{1010}}", True),
    (r"e^{-x^2/2}", r"\boxed{e^{-\frac{x^2}{2}}}", True),
    ("8x^3y^2z", r"\boxed{8 x^{3} y^{2} z}", True),
    ("120", r"\boxed{\frac{10!}{7!\,3!}}", True),
    ("120", r"\boxed{\binom{10}{3}}", True),
    ("(x-1)^2(x+2)^3(x^2+x+1)", r"\boxed{(x+2)^3(1+x+x^2)(1-x)^2}", True),
    ("[1,2) \\cup (3,4] \\cup \\{5\\}", r"\boxed{\{5\} \cup [1,2) \cup (3, 4]}", True),
    (r"1-\left(\frac{5}{6}\right)^{100}", r"\boxed{1 - (5/6)^{100}}", True),
]


def score(response: str, truth: str | None) -> Reward:
    return scorer()(RewardRow("t", "math", response, truth, {}, "stop", 1))


@pytest.mark.parametrize(("truth", "response", "right"), CASES)
def test_right_and_wrong(truth: str, response: str, right: bool) -> None:
    result = score(response, truth)
    assert result.correct is right, result
    assert result.score == float(right)


def test_the_answer_is_boxed_marked_or_last() -> None:
    assert final_answers(r"a \boxed{\frac{1}{2}} b") == [r"\frac{1}{2}"]
    assert final_answers("work\nThe answer is: 7\nthanks") == ["7"]
    assert final_answers("work\n12\n") == ["12"]
    assert final_answers("<think>work</think> 12") == ["12"]
    assert final_answers(r"\boxed{1} or \boxed{2}") == ["1", "2"]
    assert final_answers(r"\boxed{1} then \boxed{2") == []


def test_a_box_that_was_cut_off_leaves_no_answer_and_says_so() -> None:
    """The limit of tokens ended it: what was boxed before is not the answer."""
    for response in (r"\boxed{5}. Then \boxed{", r"\boxed{5}. Then \boxed{5", r"#### 5 \boxed{"):
        result = score(response, "5")
        assert (result.outcome, result.score) == ("no_answer", 0.0)
        assert result.detail == r"the last \boxed{ is not closed"
    assert score(r"\boxed{a and \boxed{5}", "5").correct, "the box that begins last is whole"


TAGGED = [
    ("<think>8 * 6060</think><answer> 48480 </answer>", "48480", True),
    ("<think>\n8 * 6060\n</think>\n<answer>\n48480\n</answer>\n", "48480", True),
    ("work <ANSWER>The answer is 48480.</ANSWER>", "48480", True),
    (r"<think>.</think><answer>So \boxed{48480}</answer>", "48480", True),
    (r"<think>\boxed{5}</think><answer>6</answer>", "6", True),
    (r"<think>\boxed{5}</think><answer>6</answer>", "5", False),
    ("<think>it is 5</think><answer>6</answer>", "5", False),
    ("<answer>5</answer> no, <answer>6</answer>", "6", True),
    ("<answer>5</answer> no, <answer>6</answer>", "5", False),
    ("<answer>5</answer><answer>6", "5", False),
    ("<answer>5</answer>, no, 6", "5", False),
    ("<think>so <answer>5</answer></think>", "5", False),
    ("<answer>5 </answer></answer>", "5", False),
    ("<answer>5 or 6</answer>", "5", False),
    ("<answer>6\n5</answer>", "5", False),
    ("<answer>6\n5</answer>", "6", False),
    ("<answer>48\n480</answer>", "48480", False),
    (r"<answer>\boxed{5}. Then \boxed{</answer>", "5", False),
    ("<answer></answer>", "5", False),
]


@pytest.mark.parametrize(("response", "truth", "right"), TAGGED)
def test_tags_that_end_a_response_hold_its_answer(response: str, truth: str, right: bool) -> None:
    """The form that prompts in the manner of R1 ask for."""
    result = score(response, truth)
    assert result.correct is right, result


BOTH = r"x = \boxed{1331} or x = \boxed{1728}"
SETS = [
    (BOTH, "1331, 1728", True),
    (BOTH, "1728, 1331", True),
    (BOTH, r"\{1331, 1728\}", True),
    (BOTH, "x = 1331 or x = 1728", True),
    (r"$x = \boxed{1331}$, and $\boxed{1728}$.", "1331, 1728", True),
    (r"\boxed{x = 1331}, \boxed{x = 1728}", "1331, 1728", True),
    (r"$x = \boxed{2}$ or $x = \boxed{-2}$", r"\pm 2", True),
    (r"\boxed{\frac{1}{2}}, or \boxed{0.5}", "1/2", True),
    (r"\boxed{1}, \boxed{2} or \boxed{3}", "1, 2, 3", True),
    (r"\boxed{1}, \boxed{2} or \boxed{3}", "2, 3", False),
    (BOTH, "1331, 1729", False),
    (BOTH, "1728", False),
    (BOTH, "1331", False),
    (BOTH, "(1331, 1728)", False),
    (r"\boxed{1} and \boxed{2}", "[1, 2]", False),
    (r"x = \boxed{1331} and y = \boxed{1728}", "1331, 1728", False),
    (r"\boxed{1331} or rather \boxed{1728}", "1331, 1728", False),
    (r"\boxed{1331} or rather \boxed{1728}", "1728", True),
    (r"First \boxed{1331}. Then \boxed{1728}.", "1331, 1728", False),
    (r"\boxed{1331}\,\boxed{1728}", "1331, 1728", False),
    (r"\boxed{x = 3}, \boxed{y = 4}", "4, 3", False),
    (r"\boxed{y = 1} or \boxed{y = 2}", "x = 1 or x = 2", False),
    (r"\boxed{x = 1} or \boxed{x = 2}", "x = 1 or x = 2", True),
]


@pytest.mark.parametrize(("response", "truth", "right"), SETS)
def test_boxes_joined_by_or_are_one_set(response: str, truth: str, right: bool) -> None:
    result = score(response, truth)
    assert result.correct is right, result
    if " or x" in response and not right:
        assert result.detail == "its 2 boxes count as one set of values"
        assert result.answer == "1331, 1728"


@pytest.mark.parametrize("truth", [None, "", "  "])
def test_a_row_without_truth_is_an_error(truth: str | None) -> None:
    """An empty answer is contained in every response."""
    with pytest.raises(UserError, match="no ground_truth"):
        score("2", truth)


HOSTILE = {
    "tower": r"\boxed{9^{9^{9^{9^{9}}}}}",
    "chain": r"\boxed{9^9^9^9}",
    "python tower": "#### 10**10**10",
    "product as exponent": r"\boxed{9^{99\cdot 99\cdot 99\cdot 99}}",
    "sum as exponent": r"\boxed{9^{9999+9999}}",
    "small divisor as exponent": r"\boxed{9^{1/0.0000001}}",
    "constants as exponent": r"\boxed{e^{e^{e^{e^9}}}}",
    "powers of powers": r"\boxed{((9^{99})^{99})^{99}}",
    "power of a sum": r"\boxed{(x+1)^{1000}}",
    "power of a long sum": r"\boxed{(x+y+z+a+b)^{24}}",
    "product of sums": r"\boxed{(a+b)(c+d)(f+g)(h+j)(k+l)(m+n)(o+p)(q+r)(s+t)(u+v)(w+x)}",
    "power of a matrix": r"\boxed{\begin{pmatrix}a&b\\c&d\end{pmatrix}^{24}}",
    "root of a power": r"\boxed{\sqrt{9^{9999}+1}}",
    "symbolic degree": r"\boxed{x^{100000}-x^{99999}}",
    "factorial": r"\boxed{99999999!}",
    "factorials": r"\boxed{9!!!!}",
    "factorial as exponent": r"\boxed{9^{9!}}",
    "symbolic binomial": r"\boxed{\binom{999}{x}}",
    "binomial": r"\boxed{\binom{1000000}{500000}}",
    "permutations": r"\boxed{(99999999)_{5}}",
    "sum": r"\boxed{\sum_{i=1}^{1000000000} i}",
    "product": r"\boxed{\prod_{i=1}^{1000000000} i}",
    "integral": r"\boxed{\int_0^1 e^{x^2}\sin{x^3} dx}",
    "limit": r"\boxed{\lim_{x\to 0} x^{x^x}}",
    "zeros": r"\boxed{\operatorname{zeros}(99999,99999)}",
    "determinant": r"\boxed{\begin{vmatrix}a&b\\c&d\end{vmatrix}}",
    "unions": r"\boxed{" + r"\cup".join(f"({i},{i + 1})" for i in range(20)) + "}",
    "bars": r"\boxed{" + "|" * 60 + "x" + "|" * 60 + "}",
    "digits": r"\boxed{" + "7" * 200 + "}",
    "unicode digits": r"\boxed{9^{" + "\u0669" * 7 + "}}",
    "exponent of ten": r"\boxed{1E999999999}",
    "braces": r"\boxed{" + "{" * 100 + "1" + "}" * 100 + "}",
    "fractions": r"\boxed{" + r"\frac{1}{" * 20 + "2" + "}" * 20 + "}",
    "radicals": r"\boxed{" + r"\sqrt{" * 20 + "2" + "}" * 20 + "}",
    "long": r"\boxed{" + "1+" * 50_000 + "1}",
    "ten thousand boxes": r"\boxed{" * 10_000,
    "ten thousand closed boxes": r"\boxed{" * 10_000 + "}" * 10_000,
    "braces without box": "{" * 200_000,
    "marks": "#### " * 100_000,
    "spaces": "answer is" + " " * 200_000 + "!",
    "surrogate": "\\boxed{\ud800}",
    "nothing": "\0",
    "nuls in a box": r"\boxed{" + "\0" * 1000 + "}",
    "surrogates in a number": "\\boxed{1\ud8002}",
    "ten megabytes": "7" * 10_000_000,
    "ten megabytes in a box": r"\boxed{" + "7" * 10_000_000 + "}",
    "ten megabytes of lines": "#### 7\n" * 1_500_000,
    "ten megabytes of units": r"\boxed{7" + r"\text{ cm}" * 1_000_000 + "}",
    "ten thousand fractions": r"\boxed{" + r"\frac{1}{" * 10_000 + "2" + "}" * 10_000 + "}",
    "ten thousand texts": r"\boxed{" + r"\text{" * 10_000 + "}" * 10_000 + "}",
    "ten thousand lefts": r"\boxed{" + r"\left(" * 10_000 + r"\right)" * 10_000 + "}",
    "exponent of a decimal": r"\boxed{1.5\times10^{999999999}}",
    "exponent of e": r"\boxed{1e99999}",
    "exponent of a unit": r"\boxed{7\text{ cm}^{99999}}",
    "units of units": r"\boxed{7" + r"\text{ cm}" * 20 + "}",
    "digits of a unit": r"\boxed{7\text{ cm" + "9" * 100 + "}}",
    "spaces between digits": r"\boxed{" + "7 " * 120 + "}",
    "thousands": r"\boxed{7" + ",777" * 60 + "x}",
    "spaces in a unit": r"\boxed{7" + r"\," * 100 + "x}",
    "words behind a number": r"\boxed{7" + " cm" * 80 + "!}",
    "inequality": r"\boxed{\sin{x^{3}} < e^{x}}",
    "chain of inequalities": r"\boxed{1<x<2<x<3}",
}
EMPTY = {"marks", "ten thousand boxes", "ten thousand closed boxes"}


@pytest.mark.slow
def test_what_a_policy_writes_has_a_verdict() -> None:
    """sympy would work on most of these forever; without a score they would stop the run."""
    worker = RewardWorker(RewardSection(functions=(RewardFunction(name="math"),)))
    rows = [RewardRow(name, "math", text, "x = 2", {}, "stop", 1) for name, text in HOSTILE.items()]
    try:
        hostile = [parts["math"] for parts in worker.score(rows, 60.0, kind="rows")]
    finally:
        worker.close()
    outcomes = {reward.trajectory_id: (reward.outcome, reward.score) for reward in hostile}
    expected = dict.fromkeys(HOSTILE, ("wrong", 0.0))
    assert outcomes == expected | dict.fromkeys(EMPTY, ("no_answer", 0.0))
    (tower,) = (reward for reward in hostile if reward.trajectory_id == "tower")
    assert tower.detail == (
        "the answer is not compared by value: a power of it has more than 1000 digits"
    )


def test_the_last_complete_box_is_found_as_by_counting_braces() -> None:
    assert final_answers(r"\boxed{1}\boxed{2}{\boxed{3}") == ["3"]
    assert final_answers(r"\boxed{a \boxed{b} c}") == ["b"]
    assert final_answers(r"}\boxed{\{1, 2\}}}") == [r"\{1, 2\}"]
