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
    run("rms_norm", rows, width, a["x"], a["weight"], 1e-6, y, inverse)
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
    fixed = (size, a["x"].clone(), SCALE, a["ids"])
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
    run("score", 2, 3, logits, 1.0, ids, logprobs, most, totals, entropies)
    expected = logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0].float()
    torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=0.0)


def test_gates_are_exact_over_their_range() -> None:
    gate = torch.linspace(-80, 80, 20001)
    gates, y = torch.cat((gate, torch.ones_like(gate)))[None], torch.empty(1, len(gate))
    run("swiglu", 1, len(gate), gates, y)
    expected = torch.nn.functional.silu(gate.double())
    torch.testing.assert_close(y[0].double(), expected, rtol=1e-6, atol=1e-30)


def _attention(rows: list[int]) -> torch.Tensor:
    """Rows that continue two prompts of 5 and 3 tokens, padded on the left, by a third token."""
    draw = torch.Generator().manual_seed(0)
    heads, shared, dim, long, room = 4, 2, 6, 5, 4
    blocks = torch.tensor([0, 0, 1, 1, 1])
    keys, values = (torch.randn(2, shared, long, dim, generator=draw) for _ in range(2))
    own = torch.randn(2, 5, shared, room, dim, generator=draw)
    projected = torch.randn(5, (heads + 2 * shared) * dim, generator=draw)
    angles = torch.randn(9, 2, dim, generator=draw)
    positions, first = torch.tensor([7, 7, 5, 5, 5]), torch.tensor([0, 2])
    end, scale = 2, 0.4
    y = torch.empty(len(rows), heads * dim)
    mine = own[:, rows].contiguous()
    run(
        "attend",
        len(rows),
        *(projected.shape[1], heads, shared, dim, projected[rows], angles, positions[rows]),
        *(keys, values, long, blocks[rows], first, mine, len(rows), room, end, scale),
        *(torch.empty(len(rows), long + room), y),
    )
    parts = projected[rows].view(len(rows), -1, dim)
    cos, sin = angles[positions[rows]].unbind(1)
    turned = parts * cos[:, None] + parts.roll(dim // 2, -1) * sin[:, None]
    queries, new_keys = turned[:, :heads], turned[:, heads : heads + shared]
    torch.testing.assert_close(mine[0, :, :, end], new_keys)
    torch.testing.assert_close(mine[1, :, :, end], parts[:, heads + shared :])
    for place, row in enumerate(rows):
        start = int(first[blocks[row]])
        for head in range(heads):
            of = head // 2
            seen, read = (
                torch.cat((theirs[blocks[row], of, start:], mine[kind, place, of, : end + 1]))
                for kind, theirs in ((0, keys), (1, values))
            )
            expected = (queries[place, head] @ seen.T * scale).softmax(-1) @ read
            found = y[place, head * dim : (head + 1) * dim]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    return y


def test_rows_attend_to_their_prompt_and_to_themselves() -> None:
    whole = _attention([0, 1, 2, 3, 4])
    assert torch.equal(_attention([3, 1]), whole[[3, 1]])


def _drawn_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, size = logits.shape
    chosen, logprobs = torch.empty(rows, dtype=torch.long), torch.empty(rows)
    run("draw", rows, size, logits, uniforms, torch.empty_like(logits), chosen, logprobs)
    return chosen, logprobs


@pytest.mark.parametrize("size", [2, 127, 128, 129, 500])
def test_the_drawn_token_is_where_the_probabilities_pass_the_uniform(size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    logits = torch.randn(400, size, generator=draw) * 3
    uniforms = torch.rand(400, generator=draw, dtype=torch.float64)
    chosen, logprobs = _drawn_tokens(logits, uniforms)
    exact = logits.double().log_softmax(-1)
    after = exact.exp().cumsum(-1).gather(1, chosen[:, None])[:, 0]
    before = after - exact.exp().gather(1, chosen[:, None])[:, 0]
    assert (before <= uniforms + 1e-6).all()
    assert (uniforms <= after + 1e-6).all()
    expected = exact.gather(1, chosen[:, None])[:, 0].float()
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    largest = torch.nextafter(torch.tensor(1.0).double(), torch.tensor(0.0).double())
    for kept in ([0], [299], [5, 140], [127, 128, 290]):
        logits = torch.full((3, 300), -torch.inf)
        logits[:, kept] = torch.randn(3, len(kept))
        for uniform in (0.0, 0.5, float(largest)):
            chosen, _ = _drawn_tokens(logits, torch.full((3,), uniform, dtype=torch.float64))
            assert set(chosen.tolist()) <= set(kept)


def test_logits_that_are_not_numbers_draw_a_token_of_no_known_log_prob() -> None:
    logits = torch.randn(2, 300)
    logits[0, 7] = torch.nan
    chosen, logprobs = _drawn_tokens(logits, torch.tensor([0.3, 0.3], dtype=torch.float64))
    assert 0 <= int(chosen[0]) < 300
    assert logprobs.isnan().tolist() == [True, False]


@pytest.mark.parametrize("size", [2, 128, 300])
def test_infinite_logits_draw_a_token_that_is_there(size: int) -> None:
    for place in range(size):
        logits = torch.zeros(1, size)
        logits[0, place] = torch.inf
        for uniform in (0.0, 0.999):
            chosen, logprobs = _drawn_tokens(logits, torch.tensor([uniform], dtype=torch.float64))
            assert 0 <= int(chosen[0]) < size
            assert logprobs.isnan().all()
