"""distil: what is grafted learns what the host did; the host itself is left alone unless it is asked for."""

import json

import pytest
import torch
from torch import Tensor, nn

from kernelhead.errors import BadInput, UnknownName
from kernelhead.rng import seeded
from kernelhead.surgery import graft, grafts, restore
from kernelhead.training import Course, distil
from tests.inputs import points


def host(**options: float) -> nn.TransformerEncoder:
    with seeded(1):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)  # type: ignore[arg-type]
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def cases(count: int = 48) -> Tensor:
    return points(count, 9, 16, dtype=torch.float32)


def course(steps: int, **options: float) -> Course:
    return Course(steps, 8, lr=3e-3, weight_decay=0.0, **options)  # type: ignore[arg-type]


DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
def test_both_parts_come_nearer_to_the_host(device: str) -> None:
    model = host(dropout=0.1).to(device)
    graft(model, "primal", "all", rank=4, seed=0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    taught = distil(model, cases().to(device), layers=course(60), whole=course(40), every=20)
    assert all(after < 0.9 * start for start, after in taught.sites.values())
    assert taught.output[2] <= taught.output[1] < taught.output[0]
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]) != ("kernelhead" in name), name
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert set(grafts(model)) == set(taught.sites)
    record = json.loads(json.dumps(taught.record()))
    assert len(record["curves"]["layers"]["loss"]) == 60
    assert len(record["curves"]["whole"]["error"]) == 2


@pytest.mark.parametrize(("train", "changed"), [("attention", "self_attn"), ("all", "linear1")])
def test_the_host_may_learn_too(train: str, changed: str) -> None:
    model = host(dropout=0.0)
    graft(model, "primal", rank=2)
    last = {name: weight.clone() for name, weight in model.layers[1].state_dict().items()}
    distil(model, cases(), layers=course(2), whole=course(3), train=train, every=1, patience=None)
    moved = {
        name for name, weight in model.layers[1].state_dict().items() if not torch.equal(weight, last[name])
    }
    assert any(changed in name for name in moved)
    assert any("linear1" in name for name in moved) == (train == "all")


def test_the_penalty_is_in_the_second_part() -> None:
    losses = []
    for eta in (0.0, 10.0):
        model = host(dropout=0.0)
        graft(model, "primal", rank=2, landmarks=4)
        taught = distil(model, cases(), layers=course(1), whole=course(2, eta=eta), every=1)
        losses.append(taught.whole.losses[0] if taught.whole else 0.0)
    assert losses[1] > losses[0]


@DEVICES
def test_padding_does_not_count(device: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    with seeded(0):
        model = transformers.BertModel(config, add_pooling_layer=False).to(device)
    with seeded(1):
        tokens = torch.randint(1, 50, (32, 6)).to(device)
    mask = torch.ones_like(tokens)
    mask[:, 4:] = 0
    found = []
    for garbage in (0, 7):
        tokens[:, 4:] = garbage
        given = {"input_ids": tokens, "attention_mask": mask}
        graft(model, "primal", rank=3, data=given, seed=0)
        taught = distil(model, given, layers=course(3), whole=course(3), every=1)
        found.append((*taught.output, *taught.sites.popitem()[1]))
        restore(model)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("train", ["cores", "all"])
def test_steps_that_lead_away_are_taken_back(train: str) -> None:
    model = host(dropout=0.0)
    graft(model, "primal", "all", rank=4, data=cases())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    far = Course(2, 8, lr=0.5, weight_decay=0.0, warmup=0.0)
    taught = distil(model, cases(), layers=far, whole=far, train=train)
    assert taught.output[0] == taught.output[1] == taught.output[2]
    assert all(start == after for start, after in taught.sites.values())
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name


def test_bad_input_has_a_sentence() -> None:
    model = host(dropout=0.0)
    with pytest.raises(BadInput, match="distil: nothing is grafted into TransformerEncoder"):
        distil(model, cases(), layers=course(1))
    graft(model, "primal", rank=2)
    with pytest.raises(UnknownName, match="distil: unknown train 'heads'"):
        distil(model, cases(), layers=course(1), train="heads")
    with pytest.raises(BadInput, match=r"a share of 0\.0 holds out 0 of 48 cases, expected some"):
        distil(model, cases(), layers=course(1), validation=0.0)
    with pytest.raises(BadInput, match="distil: TransformerEncoder cannot take a tensor"):
        distil(model, cases()[..., 1:], layers=course(1))
    model.requires_grad_(False)
    with pytest.raises(BadInput, match="distil: what is grafted has no weights to train"):
        distil(model, cases(), layers=course(1))
    model.requires_grad_(True)
    with pytest.raises(
        BadInput, match="distil: the model puts out dict, expected a tensor, logits or states"
    ):
        distil(_Odd(model), cases(), layers=course(1))


class _Odd(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"states": self.model(x)}
