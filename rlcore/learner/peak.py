"""The most that a learner's device can compute, which utilisation is a share of."""

from time import perf_counter

import torch

# Dense bf16 FLOP/s in the makers' data sheets, by what the device's name contains; first hit wins.
DATA_SHEETS = {
    "GB200": 2.5e15,
    "B200": 2.25e15,
    "MI300X": 1307e12,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "H20": 148e12,
    "L4": 121e12,
    "A40": 149.7e12,
    "A10": 125e12,
}
SIDE, REPEATS = 768, 5


def peak_flops(device: str) -> float | None:
    """Return the FLOP/s of "cpu" or "cuda": of a GPU the bf16 rate of its data sheet, None where
    its name is not listed; of a CPU what a matrix product in fp32 reaches on this process's threads
    (measured, about 50 ms)."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
        return next((rate for part, rate in DATA_SHEETS.items() if part in name), None)
    return measured_matmul_flops()


def measured_matmul_flops() -> float:
    """Return the best FLOP/s of a few square fp32 products on this process's threads."""
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    seconds = []
    for _ in range(REPEATS):
        began = perf_counter()
        torch.mm(left, right)
        seconds.append(perf_counter() - began)
    return 2.0 * SIDE**3 / min(seconds)
