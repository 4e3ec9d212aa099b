"""mend_torchvision: acts after that one failure, and after no other."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernelhead.nn.hosts import mend_torchvision

CODE = "from kernelhead.nn.hosts import mend_torchvision as mend; print(mend(), mend())"
BROKEN = """
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, threshold: dets)
"""


def run(folder: Path, torchvision: str | None) -> subprocess.CompletedProcess[str]:
    """What a fresh interpreter says with this torchvision in a folder, or with one that cannot be found."""
    if torchvision is not None:
        (folder / "torchvision.py").write_text(torchvision)
    hidden = "import sys; sys.modules['torchvision'] = None; " if torchvision is None else ""
    return subprocess.run(
        [sys.executable, "-c", hidden + CODE], capture_output=True, text=True, cwd=folder, timeout=120
    )


@pytest.mark.parametrize(
    ("torchvision", "answer"), [(BROKEN, "True True"), ("", "True True"), (None, "False False")], ids=str
)
def test_it_is_mended(tmp_path: Path, torchvision: str | None, answer: str) -> None:
    done = run(tmp_path, torchvision)
    assert done.stdout.strip() == answer, done.stderr


def test_other_failures_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise RuntimeError(f"{name} is too old")

    monkeypatch.setattr("kernelhead.nn.hosts.torchvision.importlib.import_module", fails)
    with pytest.raises(RuntimeError, match="torchvision is too old"):
        mend_torchvision()
