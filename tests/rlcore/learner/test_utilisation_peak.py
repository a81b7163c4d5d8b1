"""What a device can compute at most."""

import psutil
import pytest
import torch

from rlcore.learner.utilisation import peak_flops, peak_memory


def test_no_data_sheet_knows_a_share_of_a_cpu() -> None:
    assert peak_flops("cpu") is None


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA GB200", 2.5e15),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA GeForce GTX 1080", None),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX A4000", None),
    ],
)
def test_a_gpu_is_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, rate: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert peak_flops("cuda") == rate


def test_the_most_memory_that_this_process_has_held_is_not_forgotten() -> None:
    touched = torch.ones(2**28)  # 1 GiB
    held = psutil.Process().memory_info().rss
    assert held > touched.nbytes
    assert peak_memory("cpu") > 0.99 * held
    del touched
    assert psutil.Process().memory_info().rss < held - 2**29
    assert peak_memory("cpu") > 0.99 * held
