"""What docs/extending.md adds keeps the contracts of its family: the same suites run over it."""

import doctest
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kernelhead.kernels import KERNELS
from kernelhead.models import ATTENTIONS
from kernelhead.nn.hosts import FAMILIES
from kernelhead.surgery import graft, restore
from kernelhead.surgery.adapters import ADAPTERS
from tests.contracts import test_adapters, test_attentions
from tests.inputs import points
from tests.surgery.hosts import CORES, HOSTS, Host
from tests.tolerance import assert_exact

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
REGISTRIES: list[dict[str, Any]] = [KERNELS, ATTENTIONS, FAMILIES, ADAPTERS]
# Attentions promise these for every `member`, hosts for every `host` or `host` and `core`.
ATTENTION_LAWS = [
    law for name, law in vars(test_attentions).items() if name.startswith("test_") and callable(law)
]
HOST_LAWS = [law for name, law in vars(test_adapters).items() if name.startswith("test_") and callable(law)]


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that the page defines; what it adds stays until the tests are done."""
    before = [dict(each) for each in REGISTRIES]
    found: dict[str, Any] = {"__name__": __name__}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        if not example.source.startswith("del "):
            exec(compile(example.source, str(PAGE), "exec"), found)
    # A pickle looks a class up in the module that it names.
    globals().update({name: found[name] for name in ("CosineAttention", "Packed", "PackedForward")})
    yield found
    for each, was in zip(REGISTRIES, before, strict=True):
        each.clear()
        each.update(was)


def test_the_page_adds_one_of_each(page: dict[str, Any]) -> None:
    assert [[*each][-1] for each in REGISTRIES] == ["one_sided", "cosine", "packed", "packed"]


def test_the_kernel_is_its_formula(page: dict[str, Any]) -> None:
    kernel = page["OneSided"]()
    left, right = points(5, 4), points(7, 4, seed=1)
    wanted = [
        [sum(max(float(a), 0) * float(b) for a, b in zip(q, k, strict=True)) for k in right] for q in left
    ]
    assert_exact(kernel.entries(left, right), torch.tensor(wanted, dtype=torch.float64))
    assert_exact(kernel.pattern(left, right).matrix(), kernel.entries(left, right))


@pytest.mark.parametrize("law", ATTENTION_LAWS, ids=lambda law: law.__name__)
def test_the_attention_keeps_the_contract(
    law: Callable[..., None], page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(test_attentions.MEMBERS, "cosine", lambda: page["CosineAttention"](8, heads=2))
    for options in choices(law, member=["cosine"]):
        law(**options)


@pytest.mark.parametrize("law", HOST_LAWS, ids=lambda law: law.__name__)
def test_the_host_keeps_the_contract(
    law: Callable[..., None], page: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make() -> nn.Module:
        return nn.Sequential(page["Packed"](32, 4), nn.Tanh(), page["Packed"](32, 4))

    def given(garbage: int, masked: bool) -> dict[str, Any]:
        return {"input": points(2, 7, 32)}

    monkeypatch.setitem(HOSTS, "packed", Host(make, given, pads=False))
    for options in choices(law, host=["packed"], core=[*CORES], tmp_path=[tmp_path]):
        if options.get("masked") is not True:  # it takes no padding
            law(**options)


def choices(law: Callable[..., None], **known: list[Any]) -> list[dict[str, Any]]:
    """All options that a law of a suite is asked with, ours in place of its members."""
    asked: list[dict[str, Any]] = [{}]
    marks = {
        mark.args[0]: [each.values[0] if hasattr(each, "values") else each for each in mark.args[1]]
        for mark in getattr(law, "pytestmark", [])
        if mark.name == "parametrize"
    }
    for name in inspect.signature(law).parameters:
        values = known.get(name) or marks[name]
        asked = [{**each, name: value} for each in asked for value in values]
    return asked


def test_a_family_is_grafted_and_restored(page: dict[str, Any]) -> None:
    model, x = nn.Sequential(page["Packed"](16, 2)).double().eval(), points(2, 5, 16)
    before: Tensor = model(x)
    graft(model, "softmax", "all")
    assert_exact(model(x), before)
    restore(model)
    assert torch.equal(model(x), before)
