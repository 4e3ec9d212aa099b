"""Uses an installed kernelhead: what must work, and the sentence of each extra that is not there.

Run by check_wheel.sh with the interpreter of an empty environment, in an empty folder: use_wheel.py [EXTRAS]
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

import kernelhead
from kernelhead.cli.__main__ import main
from kernelhead.data import echo_series, read_series
from kernelhead.data.images import _sheet
from kernelhead.decomposition import ksvd
from kernelhead.errors import MissingExtra
from kernelhead.inspection import attention_graph, optimal_coupling
from kernelhead.nn import PrimalAttention
from kernelhead.nn.store import write_tensors
from kernelhead.surgery import open_host
from kernelhead.training import Job, run_jobs
from kernelhead.training.rollouts import make_environment

JOB = Job("field", "data", "variant", "clean", 0, {})
LACKING: dict[str, tuple[str, Callable[[], object]]] = {
    "cli": ("safetensors", lambda: write_tensors(Path("x.safetensors"), {"x": torch.zeros(1)}, {})),
    "ts": ("aeon", lambda: read_series("JapaneseVowels")),
    "image": ("Pillow", lambda: _sheet("cifar10/gray_test.png", Path())),
    "rl": ("gymnasium", lambda: make_environment("hopper-medium")),
    "ray": ("ray", lambda: run_jobs(print, [JOB], out=Path("grid"), ray="local:1")),
    "hf": ("transformers", lambda: open_host("bert")),
    "timm": ("timm", lambda: open_host("timm:vit_tiny_patch16_224")),
    "causal": ("causal-learn", lambda: attention_graph(torch.eye(3) + 0.1, n=100, method="pc")),
    "ot": ("POT", lambda: optimal_coupling(torch.randn(3, 2), torch.randn(4, 2))),
}
MODULES = {"cli": "safetensors", "image": "PIL", "causal": "causallearn", "ot": "ot"}


def check(said: bool, what: object) -> None:
    """Stop where something is not as it should be."""
    if not said:
        sys.exit(f"the wheel does not work: {what}")


def command(*words: str, code: int = 0) -> tuple[str, str]:
    """Both streams of the installed command, which must end with a code."""
    script = Path(sys.executable).parent / "kernelhead"
    done = subprocess.run([script, *words], capture_output=True, text=True, check=False)
    check(done.returncode == code, (words, done.returncode, done.stdout, done.stderr))
    return done.stdout, done.stderr


def use_layers() -> None:
    """What needs torch, numpy and scikit-learn only."""
    check("site-packages" in str(kernelhead.__file__), kernelhead.__file__)
    check(PrimalAttention(8, heads=2, rank=2)(torch.zeros(1, 3, 8)).shape == (1, 3, 8), "PrimalAttention")
    check(ksvd(torch.randn(9, 3), torch.randn(8, 3)).values.shape == (3,), "ksvd")
    record = json.loads(command("doctor", "--json")[0])
    check(record["healthy"] and {*LACKING} <= record["extras"].keys(), record)


def want_extras() -> None:
    """Each package that is not there is named, with the command that brings it."""
    Path("bert").mkdir(exist_ok=True)
    Path("bert/config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    for extra, (package, use) in LACKING.items():
        if find_spec(MODULES.get(extra, package)) is not None:
            continue
        wanted = f'needs {package}, which is not installed; run: pip install "kernelhead[{extra}]"'
        try:
            use()
        except MissingExtra as error:
            check(str(error).endswith(wanted), error)
        else:
            check(False, f"nobody missed {package}")
        print(f"without {extra}: {wanted}")


def use_command() -> None:
    """From a file to a run, its figures and its page."""
    held = echo_series(24, length=12, channels=2, classes=2, seed=0)
    rows = [
        f"{number},{time},{label},{a},{b}"
        for number, (case, label) in enumerate(zip(held.cases, held.labels or (), strict=True))
        for time, (a, b) in enumerate(case)
    ]
    Path("series.csv").write_text("\n".join(["case,time,label,a,b", *rows]) + "\n", encoding="utf-8")
    sizes = ["--epochs", "2", "--width", "8", "--depth", "1", "--heads", "2", "--rank", "2"]
    command("train", "series.csv", "--test", "series.csv", *sizes, "--out", "run", "--quiet")
    check(json.loads(command("evaluate", "run", "--json")[0])["cases"] == 24, "evaluate")
    command("report", "run", "--out", "page.html")
    check(Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>"), "page.html")
    check("_shtab_kernelhead" in command("completion", "bash")[0], "completion")
    said = command("train", "JapaneseVowels", code=2)[1]
    check(said.endswith('needs aeon, which is not installed; run: pip install "kernelhead[ts]"\n'), said)


if __name__ == "__main__":
    warnings.filterwarnings("error", module="kernelhead")
    use_layers()
    want_extras()
    if sys.argv[1:] == ["[cli]"]:
        use_command()
    else:
        check(main(["evaluate", "run"]) == 2, "evaluate without the extra cli")
    print(f"the wheel works outside the checkout{' with ' if sys.argv[1] else ''}{sys.argv[1]}")
