"""Each loop computes its formula, the same bits on any number of threads and for any rows beside,
and hides no NaN."""

from collections.abc import Callable

import pytest
import torch

from rlcore.kernels.parallel import CHUNKS, run

Arrays = dict[str, torch.Tensor]
SIZES = [(1, 2), (3, 6), (33, 130), (257, 34)]  # rows, elements; also fewer rows than chunks


def _drawn(rows: int, width: int) -> Arrays:
    draw = torch.Generator().manual_seed(rows * 1000 + width)
    shapes = {
        "x": (rows, width),
        "gradient": (rows, width),
        "more": (rows, width),
        "weight": (width,),
        "angles": (rows, width),
        "of_logprobs": (rows,),
        "of_entropies": (rows,),
    }
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    found["ids"] = torch.randint(width, (rows,), generator=draw)
    return found


def _norm(a: Arrays) -> list[torch.Tensor]:
    rows, width = a["x"].shape
    y, inverse = torch.empty_like(a["x"]), torch.empty(rows)
    run("rms_norm", rows, width, a["x"], a["weight"], torch.tensor(1e-6), y, inverse)
    return [y, inverse]


def _norm_formula(a: Arrays) -> list[torch.Tensor]:
    inverse = torch.rsqrt(a["x"].pow(2).mean(-1) + 1e-6)
    return [a["weight"] * a["x"] * inverse[:, None], inverse]


def _norm_gradient(a: Arrays) -> list[torch.Tensor]:
    rows, width = a["x"].shape
    of_x, of_weight = torch.empty_like(a["x"]), torch.zeros(CHUNKS, width)
    fixed = (width, a["x"], a["weight"], _norm(a)[1], a["gradient"], 1, a["more"])
    run("rms_norm_gradient", rows, *fixed, of_x, of_weight)
    return [of_x, of_weight.sum(0)]


def _norm_gradient_formula(a: Arrays) -> list[torch.Tensor]:
    x, weight = a["x"].requires_grad_(), a["weight"].requires_grad_()
    y = _norm_formula(a)[0]
    of_x, of_weight = torch.autograd.grad(y, (x, weight), a["gradient"])
    return [of_x + a["more"], of_weight]


def _turned(a: Arrays) -> list[torch.Tensor]:
    """One head forward, and back."""
    rows, width = a["x"].shape
    once = a["x"].clone()
    angles = a["angles"].cos(), a["angles"].sin()
    run("rotate", rows, width, 1, width, once, *angles, 0)
    back = a["gradient"].clone()
    run("rotate", rows, width, 1, width, back, *angles, 1)
    return [once, back]


def _turned_formula(a: Arrays) -> list[torch.Tensor]:
    x = a["x"].requires_grad_()
    first, second = x.chunk(2, -1)
    y = x * a["angles"].cos() + torch.cat((-second, first), -1) * a["angles"].sin()
    return [y.detach(), torch.autograd.grad(y, x, a["gradient"])[0]]


def _gated(a: Arrays) -> list[torch.Tensor]:
    gates = torch.cat((a["x"], a["more"]), 1)
    rows, inner = a["x"].shape
    y, above = torch.empty_like(a["x"]), a["gradient"].clone()
    run("swiglu", rows, inner, gates, y)
    run("swiglu_gradient", rows, inner, gates, above)
    return [y, *gates.chunk(2, 1), above]


def _gated_formula(a: Arrays) -> list[torch.Tensor]:
    gate, up = a["x"].requires_grad_(), a["more"].requires_grad_()
    y = torch.nn.functional.silu(gate) * up
    return [y, *torch.autograd.grad(y, (gate, up), a["gradient"]), y]


SCALE = 1.3


def _scored(a: Arrays) -> list[torch.Tensor]:
    rows, size = a["x"].shape
    logprobs, most, totals, entropies = torch.empty(4, rows)
    fixed = (size, a["x"].clone(), torch.tensor(SCALE), a["ids"])
    run("score", rows, *fixed, logprobs, most, totals, entropies)
    found = [logprobs, entropies]
    for wanted in (0, 1):
        gradient = a["x"].clone()
        known = (most, totals, entropies, a["of_logprobs"], a["of_entropies"])
        run("score_gradient", rows, size, gradient, *fixed[2:], *known, wanted)
        found.append(gradient)
    return found


def _scored_formula(a: Arrays) -> list[torch.Tensor]:
    logits = a["x"].requires_grad_()
    log_softmax = (SCALE * logits).log_softmax(-1)
    logprobs = log_softmax.gather(1, a["ids"][:, None])[:, 0]
    entropies = -(log_softmax.exp() * log_softmax).sum(-1)
    (plain,) = torch.autograd.grad(logprobs, logits, a["of_logprobs"], retain_graph=True)
    (more,) = torch.autograd.grad(entropies, logits, a["of_entropies"])
    return [logprobs, entropies, plain, plain + more]


LOOPS: dict[str, tuple[Callable[[Arrays], list[torch.Tensor]], ...]] = {
    "norm": (_norm, _norm_formula),
    "gradient of norm": (_norm_gradient, _norm_gradient_formula),
    "rotation": (_turned, _turned_formula),
    "gate": (_gated, _gated_formula),
    "scores": (_scored, _scored_formula),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_computes_its_formula(name: str, size: tuple[int, int]) -> None:
    loop, formula = LOOPS[name]
    doubled = {
        key: value.double() if value.is_floating_point() else value
        for key, value in _drawn(*size).items()
    }
    for ours, exact in zip(loop(_drawn(*size)), formula(doubled), strict=True):
        torch.testing.assert_close(ours.double(), exact.detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", LOOPS)
def test_bits_do_not_depend_on_threads(name: str) -> None:
    loop, _ = LOOPS[name]
    before = torch.get_num_threads()
    found = []
    for number in (1, 2, 3, 7):
        torch.set_num_threads(number)
        found.append(loop(_drawn(257, 130)))
    torch.set_num_threads(before)
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "gradient of norm"])
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    loop, _ = LOOPS[name]
    whole = _drawn(257, 130)
    part = {key: value if key == "weight" else value[100:120] for key, value in whole.items()}
    for rows, alone in zip(loop(whole), loop(part), strict=True):
        assert torch.equal(rows[100:120], alone)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", LOOPS)
def test_what_is_not_finite_is_not_hidden(name: str, bad: float) -> None:
    """Guards and skipped steps look for it; and it stays in its row."""
    loop, _ = LOOPS[name]
    for place in (0, 7, 129):
        arrays = _drawn(40, 130)
        arrays["x"][5, place] = bad
        first, *_ = loop(arrays)
        assert not torch.isfinite(first[5]).all()
        assert torch.isfinite(first[6:]).all()


@pytest.mark.parametrize("size", [1e4, 3e4])
def test_large_logits_lose_nothing(size: float) -> None:
    logits = torch.tensor([[0.0, -size, size], [size, size, -size]])
    ids = torch.tensor([1, 0])
    logprobs, most, totals, entropies = torch.empty(4, 2)
    one = torch.tensor(1.0)
    run("score", 2, 3, logits, one, ids, logprobs, most, totals, entropies)
    expected = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0].float()
    torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=0.0)


def test_gates_are_exact_over_their_range() -> None:
    gate = torch.linspace(-80, 80, 20001)
    gates, y = torch.cat((gate, torch.ones_like(gate)))[None], torch.empty(1, len(gate))
    run("swiglu", 1, len(gate), gates, y)
    expected = torch.nn.functional.silu(gate.double())
    torch.testing.assert_close(y[0].double(), expected, rtol=1e-6, atol=1e-30)
