"""oneDNN within the limit that a user has set for torch's own CPU kernels.

``ATEN_CPU_CAPABILITY`` lowers the instruction set of torch's kernels and not of oneDNN, which reads
the CPU. On a CPU with AMX torch's attention in bfloat16 then packs keys for oneDNN from 64 tokens
on and, compiled without AVX-512, cannot: "pack_vnni2 is only supported when avx512 is supported"
(torch 2.13, ``could_pack`` in aten/src/ATen/native/CPUBlas.cpp). A CPU that has no AMX is never
asked to.
"""

import os
from collections.abc import MutableMapping

CAPABILITY, LIMIT = "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"
LOWERED = ("default", "avx2")
WITHOUT_AMX = "AVX512_CORE_FP16"


def limit_onednn(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep oneDNN off AMX where torch's kernels are limited; call it before bfloat16 is computed.

    A limit that the user has set stays.
    """
    if environment.get(CAPABILITY, "").lower() in LOWERED:
        environment.setdefault(LIMIT, WITHOUT_AMX)
