"""A bucket that is silent answers late, and loses nothing."""

import threading
import time
from pathlib import Path

import pytest

from tests.chaos.bucket import BUCKET, bucket

SILENT_S = 2.0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_who_asks_a_silent_bucket_waits(tmp_path: Path) -> None:
    with bucket(tmp_path / "log") as made:
        assert made.names() == []
        silence = threading.Thread(target=made.be_silent, args=(SILENT_S,))
        silence.start()
        time.sleep(SILENT_S / 4)
        began = time.monotonic()
        assert made.names(BUCKET) == []
        assert time.monotonic() - began > SILENT_S / 4
        silence.join()
