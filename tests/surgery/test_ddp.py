"""A grafted model in two processes: no parameter is left waiting for a gradient."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.surgery.hosts import built

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["others", "timm"])
def test_two_processes_train_as_one(hosts: str, tmp_path: Path) -> None:
    built("timm_vit" if hosts == "timm" else "bert")  # or says what is missing
    command = [sys.executable, "-m", "tests.surgery.ddp"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting"), hosts],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        _, words = process.communicate(timeout=120)
        assert process.returncode == 0, words
