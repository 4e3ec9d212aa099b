"""kernelhead doctor: what it finds, what its self-test can see, and that it needs no extra."""

import json
import sys
import time
from typing import Any

import pytest
import torch

from kernelhead import __version__
from kernelhead.cli import health
from kernelhead.cli.__main__ import main
from kernelhead.cli.doctor import examine
from kernelhead.nn import PrimalAttention


def test_a_sound_installation_is_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in (__version__, "torch", "device", "back end eager", "extra cli", "passed", "healthy: 0 of "):
        assert words in out
    assert "FAILED" not in out


def test_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["healthy"] is True
    assert record["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert record["backends"]["eager"] == "yes"
    assert {"cli", "ts", "hf", "gpu"} <= record["extras"].keys()
    assert [check["error"] <= 1e-4 for check in record["checks"]] == [True] * len(record["checks"])


def test_the_self_test_takes_two_seconds() -> None:
    started = time.process_time()  # other work on the machine adds nothing
    health.self_test()
    assert time.process_time() - started < 2


def test_a_wrong_layer_is_seen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = PrimalAttention.forward

    def wrong(*given: Any, **options: Any) -> torch.Tensor:
        return right(*given, **options) * (1 + 1e-9)

    monkeypatch.setattr(PrimalAttention, "forward", wrong)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "primal layer beside loops: relative error 1.0e-09, at most 1e-10" in out
    assert "not healthy: 1 of " in out


def test_wrong_singular_values_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no LAPACK\nhere")

    monkeypatch.setattr("torch.linalg.svd", wrong)
    first, *_ = health.self_test()
    assert (first.passed, first.error, first.said) == (False, None, "RuntimeError: no LAPACK here")
    monkeypatch.setattr("torch.linalg.svd", lambda a: torch.return_types.linalg_svd((a, a[0] * torch.nan, a)))
    first, *_ = health.self_test()
    assert not first.passed  # NaN is below no bound


def test_a_torch_that_does_not_load_is_said_and_not_raised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "kernel SVD beside torch.linalg.svd: ModuleNotFoundError: import of torch halted" in out


def test_a_package_that_is_missing_comes_with_its_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelhead.cli.health.requires", lambda _: ['nosuch>=1; extra == "ts"', "torch>=2"])
    assert main(["doctor"]) == 0  # an extra is nobody's duty
    assert 'missing nosuch; run: pip install "kernelhead[ts]"' in capsys.readouterr().out
    monkeypatch.setattr("kernelhead.cli.health.installed", lambda name: None if name == "numpy" else "1")
    assert examine()["healthy"] is False


def test_a_bare_source_tree_has_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.cli.health.installed", lambda name: None)
    assert health.extras() == {}


@pytest.mark.parametrize(
    ("triton", "cuda", "said"),
    [
        (False, False, 'no: needs triton; run: pip install "kernelhead[gpu]"'),
        (True, False, "no: torch sees no CUDA device"),
        (True, True, "yes"),
    ],
)
def test_back_ends_say_why_not(triton: bool, cuda: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelhead.ops.backends.HAS_TRITON", triton)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    assert health.backends() == {"eager": "yes", "triton": said}


@pytest.mark.gpu
def test_the_kernel_is_checked_where_there_is_a_device() -> None:
    checks = health.self_test()
    assert [check.said for check in checks if not check.passed] == []
    assert len(checks) == 3
    assert any(device.startswith("cuda:0") for device in health.devices())


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_it_runs_without_the_packages_of_the_command_line(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("jsonargparse", "rich"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "kernelhead.cli.verbs", raising=False)
    assert main(words) == 0
    assert "healthy" in capsys.readouterr().out
