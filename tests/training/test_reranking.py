"""Training of re-rankers: losses by loops, lists, what is drawn at random, and the field on tiny sets."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import Images, instance_curves
from kernelhead.errors import BadInput, ShapeError, UnknownName
from kernelhead.models import RerankerModel, list_affinity
from kernelhead.rng import seeded
from kernelhead.training import (
    FIELDS,
    Course,
    Job,
    contrastive_loss,
    fit_reranker,
    list_loss,
    lists_of,
    reconstruction_loss,
    reranking,
)
from kernelhead.training.reranking import RERANK_PAGE, Embedder, rerank_jobs, rerank_run, thinned
from tests.inputs import keep, points
from tests.oracles import reranking as oracle
from tests.tolerance import assert_exact

ROOT = Path(__file__).parents[2]
SMALL = {
    "k": 8, "anchors": 6, "width": 8, "heads": 2, "rank": 2, "landmarks": 4, "steps": 4, "every": 2,
    "batch": 8, "train": 4, "valid": 3, "test": 3, "seen_steps": 3,
}  # fmt: skip


@given(n=st.integers(1, 6), temperature=st.sampled_from([0.1, 2.0]), seed=st.integers(0, 999))
def test_losses_are_their_definitions(n: int, temperature: float, seed: int) -> None:
    scores, made, affinity = points(2, n, seed=seed).tanh(), points(2, n, 4, seed=seed), points(2, n, 4)
    same = points(2, n, seed=seed + 1) > 0
    same[:, 0] = True
    wanted = [
        oracle.contrastive(one, kin, temperature=temperature)
        for one, kin in zip(scores, same.tolist(), strict=True)
    ]
    assert_exact(
        contrastive_loss(scores, same, temperature=temperature),
        torch.tensor(wanted).double().mean(),
        bound=1e-6,
    )
    wanted = [oracle.reconstruction(one, other) for one, other in zip(made, affinity, strict=True)]
    assert_exact(reconstruction_loss(made, affinity), torch.tensor(wanted, dtype=torch.float64).mean())


def test_the_contrastive_loss_has_a_floor() -> None:
    """Cosines of 1 and -1 at temperature 2: ln(1 + N / (P e))."""
    same = torch.tensor([[True, True, False, False, False]])
    best = contrastive_loss(2.0 * same.double() - 1, same)
    assert_exact(best, torch.log1p(torch.tensor(3 / 2).double() / torch.tensor(1.0).double().exp()))


def test_padding_counts_for_neither_loss() -> None:
    mask, same = keep([5, 3], 5), torch.tensor([[True, False, True, True, False]] * 2)
    scores, made, affinity = points(2, 5), points(2, 5, 4, seed=1), points(2, 5, 4, seed=2)
    short = [contrastive_loss(scores[i : i + 1, :n], same[i : i + 1, :n]) for i, n in enumerate((5, 3))]
    filled = scores.masked_fill(~mask, 1e30)
    assert_exact(contrastive_loss(filled, same & mask, mask=mask), sum(short) / 2)
    parts = [
        reconstruction_loss(made[i : i + 1, :n], affinity[i : i + 1, :n]) * n for i, n in enumerate((5, 3))
    ]
    assert_exact(reconstruction_loss(made, affinity, mask=mask), sum(parts) / 8)


def test_losses_have_gradients_where_all_is_alike() -> None:
    made = torch.ones(1, 3, 4, dtype=torch.float64, requires_grad=True)
    reconstruction_loss(made, torch.ones(1, 3, 4).double()).backward()
    assert bool(made.grad.isfinite().all())
    scores, same = points(2, 4).requires_grad_(), torch.tensor([[True, False, True, False]] * 2)
    assert torch.autograd.gradcheck(partial(contrastive_loss, same=same), [scores])


def test_lists_hold_neighbours_of_items_that_have_kin() -> None:
    x, labels = points(6, 4), torch.tensor([0, 1, 0, 2, 1, 1])
    lists = lists_of(x, labels, 4)
    assert lists.items[:, 0].tolist() == [0, 1, 2, 4, 5]  # item 3 is alone
    assert lists.items.shape == (5, 5)
    places = lists.items % 6
    assert torch.equal(lists.same, labels[places] == labels[places[:, :1]])
    affinity = list_affinity(lists.points[lists.items], 5)
    assert bool((affinity[:, 0].diff(dim=1) <= 0).all())
    assert lists_of(x, labels, 99, sides="both").items.shape == (5, 6)


def test_the_loss_of_lists_is_the_sum_of_both_and_padding_has_no_influence() -> None:
    lists = lists_of(points(8, 4), torch.arange(8) // 2, 6)
    with seeded(0):
        model = RerankerModel(5, width=8, heads=2).double()
    made = list_loss(lists.points, reconstruction=0.5)(model, lists.items, lists.same)
    total = 0.0
    for items, same in zip(lists.items, lists.same, strict=True):
        affinity = oracle.affinity(lists.points[items], 5)
        scores, again = oracle.scores(model.state_dict(), affinity, depth=2, heads=2)
        total += oracle.contrastive(scores, same.tolist(), temperature=2.0)
        total += 0.5 * oracle.reconstruction(again, affinity)
    assert_exact(made.detach(), torch.tensor(total / 8, dtype=torch.float64), bound=1e-9)
    short = list_loss(lists.points)(model, lists.items[:, :4], lists.same[:, :4])
    padded = lists.items.clone()
    padded[:, 4:] = -1
    assert_exact(list_loss(lists.points)(model, padded, lists.same).detach(), short.detach())


@given(n=st.integers(1, 9), seed=st.integers(0, 99))
def test_thinning_keeps_the_query_and_the_order(n: int, seed: int) -> None:
    items = torch.arange(3 * n).view(3, n)
    same = items % 2 == 0
    with seeded(seed):
        left, kin = thinned(items, same, 0.5)
    for row in range(3):
        real = left[row][left[row] >= 0]
        assert real[0] == items[row, 0]
        assert real.tolist() == sorted(real.tolist())
        assert torch.equal(left[row, : len(real)], real)
        assert torch.equal(kin[row, : len(real)], real % 2 == 0)


def test_what_is_drawn_changes_the_loss_and_a_seed_names_it() -> None:
    lists = lists_of(points(12, 4, dtype=torch.float32), torch.arange(12) // 4, 8)
    with seeded(0):
        model = RerankerModel(8, width=8, heads=2)
    plain = list_loss(lists.points)(model, lists.items, lists.same)
    for options in ({"thinning": 0.5}, {"jitter": 0.3}):
        found = []
        for _ in range(2):
            with seeded(1):
                found.append(list_loss(lists.points, **options)(model, lists.items, lists.same))
        assert torch.equal(*found)
        assert not torch.equal(found[0], plain)
    assert list_loss(lists.points, reconstruction=0.0)(model, lists.items, lists.same) < plain


def test_it_learns_to_reorder_lists_of_instances_it_has_not_seen() -> None:
    drawn = [instance_curves(30, views=10, width=16, noise=0.5, seed=seed) for seed in (0, 1)]
    train, test = (lists_of(torch.from_numpy(each.x), torch.arange(300) // 10, 20) for each in drawn)
    with seeded(0):
        model = RerankerModel(20, width=16, heads=2)
    loss = list_loss(test.points)
    before = loss(model, test.items, test.same)
    fit_reranker(model, train, Course(60, 32, lr=3e-3, weight_decay=0.0))
    assert loss(model, test.items, test.same) < 0.8 * before


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["softmax", "primal"])
def test_a_captured_step_learns_on_a_gpu(attention: str) -> None:
    drawn = torch.from_numpy(instance_curves(30, views=10, width=16, noise=0.5, seed=0).x).cuda()
    lists = lists_of(drawn, torch.arange(300, device="cuda") // 10, 20, sides="both")
    with seeded(0):
        model = RerankerModel(20, width=16, heads=2, attention=attention, rank=4, landmarks=8, dropout=0.1)
    loss = list_loss(lists.points, thinning=0.2, jitter=0.1)
    fitted = fit_reranker(model.cuda(), lists, Course(60, 32, lr=3e-3), loss=loss)
    assert fitted.losses[-1] < 0.9 * fitted.losses[0]


X, Y = points(4, 3), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: lists_of(X, Y[:3], 2), ShapeError, "lists_of: axis `m` is 4 in `points` but 3 in `labels`"),
        (lambda: lists_of(X, torch.arange(4), 2), BadInput, "lists_of: no two of 4 items have the same"),
        (lambda: list_loss(X, thinning=1.0), BadInput, "list_loss: thinning is 1.0, jitter 0.0"),
        (lambda: list_loss(X, jitter=-1.0), BadInput, "list_loss: thinning is 0.0, jitter -1.0"),
        (lambda: list_loss(X, temperature=0.0), BadInput, "temperature 0.0"),
        (lambda: list_loss(X, reconstruction=-1.0), BadInput, "reconstruction -1.0"),
        (lambda: contrastive_loss(X, Y > 0), ShapeError, "contrastive_loss: `same` has shape"),
        (lambda: reconstruction_loss(X[None], X[None, :2]), ShapeError, "reconstruction_loss: axis `n` is 4"),
        (lambda: Embedder(0, torch.zeros(1, 1, 8, 8)), BadInput, "Embedder: classes is 0"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def job(data: str = "curves", **settings: object) -> Job:
    return Job("rerank", data, "any", "clean", 0, {**SMALL, **settings})


def test_the_file_of_the_house_names_what_the_page_shows() -> None:
    jobs = rerank_jobs(ROOT / "recipes" / "rerank.toml", protocol="clean", seeds=3)
    assert {each.variant for each in jobs} == {*RERANK_PAGE.variants}
    assert {each.data for each in jobs} == {"curves", "MNIST", "CIFAR-10 grey"}
    assert FIELDS["rerank"].page is RERANK_PAGE


def test_every_method_has_its_figures_and_a_seed_repeats_them() -> None:
    for method in ("first", "alpha-qe", "alpha-qe-both", "k-reciprocal", "affinity"):
        assert 0 < rerank_run(job(method=method)).figures["test_map"] <= 1
    for attention in ("softmax", "primal"):
        one, same = (rerank_run(job(attention=attention, sides="both", longer=12)) for _ in range(2))
        assert {"test_map", "test_precision_10", "valid_map", "fit_seconds"} <= {*one.figures}
        assert one.figures["test_map"] == same.figures["test_map"]
        assert one.parameters is not None


def test_images_are_ranked_by_features_of_a_network_that_knows_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def images(name: str, *, split: str, root: object) -> Images:
        y = np.arange(80) % 4
        draws = np.random.default_rng({"train": 0, "validation": 1, "test": 2}[split])
        x = np.clip(60 * y[:, None, None, None] + draws.integers(0, 40, (80, 1, 8, 8)), 0, 255)
        return Images(name, x.astype(np.uint8), y, tuple("abcd"))

    monkeypatch.setattr(reranking, "read_images", images)
    reranking._embedded.cache_clear()
    outcome = rerank_run(job("MNIST", sides="both"))
    assert 0 < outcome.figures["test_map"] <= 1
    _, valid, test = reranking.SOURCES["MNIST"](reranking.Settings(**SMALL), 0, torch.device("cpu"), None)
    assert {*test[1].tolist()} == {2, 3}
    assert {*valid[1].tolist()} == {0, 1}
    assert_exact(test[0].double().norm(dim=1), torch.ones(6).double(), bound=1e-6)
    reranking._embedded.cache_clear()


def test_a_wrong_method_is_said() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown method 'last'.* Known: affinity, alpha-qe, alpha-qe-both, first"
    ):
        rerank_run(job(method="last"))
