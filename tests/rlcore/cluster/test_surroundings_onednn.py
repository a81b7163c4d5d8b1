"""Attention in bfloat16 under a lowered ``ATEN_CPU_CAPABILITY``, on whatever CPU there is."""

import os
import subprocess
import sys

import pytest

from rlcore.cluster.host_settings import CAPABILITY, LIMIT, WITHOUT_AMX, limit_onednn

ATTEND = """
import torch
from rlcore.cluster.host_settings import limit_onednn
limit_onednn()
row = torch.zeros(1, 1, 64, 8, dtype=torch.bfloat16)
torch.nn.functional.scaled_dot_product_attention(row, row, row, is_causal=True)
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({CAPABILITY: "avx512"}, None),
        ({CAPABILITY: "default"}, WITHOUT_AMX),
        ({CAPABILITY: "AVX2"}, WITHOUT_AMX),
        ({CAPABILITY: "avx2", LIMIT: "AVX2"}, "AVX2"),
    ],
)
def test_onednn_is_limited_with_torch_unless_the_user_has_limited_it(environment, expected) -> None:
    limit_onednn(environment)
    assert environment.get(LIMIT) == expected


def test_a_row_of_64_tokens_is_attended_to_under_the_variable() -> None:
    environment = {k: v for k, v in os.environ.items() if k != LIMIT} | {CAPABILITY: "default"}
    done = subprocess.run(
        [sys.executable, "-c", ATTEND], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "DEFAULT"), done.stderr
