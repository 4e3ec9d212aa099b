"""The field of co-occurrence: its tasks on texts whose answer is known, its recipe, and a run at toy size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelhead.data import BREAK, Words
from kernelhead.errors import BadInput, MissingExtra, UnknownName
from kernelhead.kernels import CooccurrenceKernel
from kernelhead.models import LanguageModel
from kernelhead.rng import seeded
from kernelhead.training import cooccurrence
from kernelhead.training.cooccurrence import (
    COOCCURRENCE_PAGE,
    TASKS,
    Settings,
    cooccurrence_jobs,
    cooccurrence_run,
    known_tokens,
    similarity_figures,
)
from kernelhead.training.cooccurrence_tasks import (
    Hidden,
    circuit_figures,
    first_layer_terms,
    hidden_words,
    neighbour_scores,
    next_word_loss,
    order_figures,
    retrieval_figures,
    shuffled_kernel,
    start_language_model,
    stretches,
)
from kernelhead.training.fields import FIELDS
from kernelhead.training.grid import Job
from tests.inputs import points
from tests.tolerance import assert_exact

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "words": 12,
    "window": 2,
    "cases": 20,
    "length": 4,
    "common": 1,
    "vectors": 4,
    "least": 1,
    "passes": 1,
    "read": 8,
    "early": 2,
    "width": 8,
    "context": 8,
    "steps": 4,
    "batch": 4,
    "watched": 200,
}


def chain_text(count: int, seed: int) -> np.ndarray:
    """Words that mostly follow each other in a ring of twelve, a border now and then."""
    draws = np.random.default_rng(seed)
    found = [2]
    for _ in range(count - 1):
        jump = draws.random() < 0.2
        found.append(int(draws.integers(2, 14)) if jump else 2 + (found[-1] - 1) % 12)
    return np.where(draws.random(count) < 0.03, 0, np.array(found))


def read(name: str, *, split: str, root: object) -> Words:
    vocabulary = ("<eos>", "<unk>", *(f"w{place}" for place in range(12)))
    return Words(name, chain_text(1500, ["train", "validation", "test"].index(split)), vocabulary)


@pytest.fixture
def _text(monkeypatch: pytest.MonkeyPatch) -> Any:
    cooccurrence._part.cache_clear()
    monkeypatch.setattr(cooccurrence, "read_words", read)
    yield
    cooccurrence._part.cache_clear()


def job(data: str, **settings: object) -> Job:
    return Job("cooccurrence", data, "any", "clean", 0, {**SMALL, **settings})


def kernel_of(directed: bool, smoothing: float = 0.75) -> CooccurrenceKernel:
    tokens = known_tokens(read("a", split="train", root=None), 12)
    return CooccurrenceKernel.count([tokens], 12, window=2, directed=directed, smoothing=smoothing)


@given(st.integers(0, 99))
def test_a_symmetric_kernel_ties_on_every_order_and_a_directed_one_does_not(seed: int) -> None:
    texts = stretches(known_tokens(read("a", split="test", root=None), 12), length=6, count=60, seed=seed)
    symmetric = order_figures(kernel_of(False, 1.0), texts, seed=seed)
    assert (symmetric.ties, symmetric.right, symmetric.score) == (1.0, 0.0, 0.5)
    assert order_figures(kernel_of(True), texts, pairs="all", seed=seed).ties == 1.0
    assert order_figures(kernel_of(True), texts, seed=seed).score > 0.8
    assert order_figures(kernel_of(True), texts, pairs="previous", seed=seed).score > 0.9


def test_a_text_of_one_word_has_one_order() -> None:
    assert order_figures(kernel_of(True), torch.zeros(3, 4, dtype=torch.long)).ties == 1.0


@given(st.lists(st.integers(-1, 5), min_size=30, max_size=60), st.integers(0, 9))
def test_stretches_and_neighbours_stay_within_a_sentence(tokens: list[int], seed: int) -> None:
    text = np.array([*tokens, 1, 2, 3, BREAK])
    lines = [line for line in "".join("|" if each < 0 else str(each) for each in text).split("|") if line]
    for row in stretches(text, length=3, count=1, seed=seed):
        assert any("".join(map(str, row.tolist())) in line for line in lines)
    hidden = hidden_words(text, window=2, count=3, least=0, seed=seed)
    for word, before, after in zip(hidden.words, hidden.before, hidden.after, strict=True):
        around = [*before.flip(0).tolist(), int(word), *after.tolist()]
        assert any("".join(str(each) for each in around if each >= 0) in line for line in lines)
        assert -1 not in before.tolist() or before.tolist()[-1] == -1


def test_neighbours_are_scored_by_name() -> None:
    entries = points(4, 4).abs()
    kernel, counts = CooccurrenceKernel(entries.numpy()), torch.arange(4.0)
    hidden = Hidden(torch.tensor([3]), torch.tensor([[0, 1]]), torch.tensor([[2, -1]]))
    entries = entries.float()
    wanted = {
        "unigram": counts,
        "profiles": entries[[0, 1, 2]].sum(0),
        "directed": entries[:, 0] + entries[:, 1] + entries[2],
        "none": (entries[[1, 0, 2]][:, [1, 0, 2]] @ entries[[1, 0, 2]]).mean(0),
    }
    for method, scores in wanted.items():
        assert torch.allclose(neighbour_scores(method, kernel, counts)(hidden)[0], scores, atol=1e-5)
    for method in ("row", "softmax"):
        assert neighbour_scores(method, kernel, counts)(hidden).shape == (1, 4)


def test_ranks_count_ties_as_half_ahead() -> None:
    hidden = Hidden(torch.tensor([0, 2]), torch.zeros(2, 1).long(), torch.zeros(2, 1).long())
    found = retrieval_figures(lambda part: torch.tensor([[1.0, 1.0, 1.0], [0.0, 5.0, 6.0]]), hidden)
    assert found["reciprocal_rank"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["hit_10"] == 1


def test_a_shuffled_kernel_has_the_same_spectrum() -> None:
    kernel = kernel_of(True)
    shuffled = shuffled_kernel(kernel, seed=0)
    assert not np.array_equal(shuffled.matrix.toarray(), kernel.matrix.toarray())
    assert_exact(
        shuffled.pattern(torch.float64).singular_values(), kernel.pattern(torch.float64).singular_values()
    )


def test_a_model_starts_from_a_kernel() -> None:
    with seeded(0):
        model = LanguageModel(12, width=24, depth=1, heads=1, tied=False, position="none")
    words, kernel = torch.arange(12), kernel_of(True)
    statistic = kernel.restrict(words).float()
    before = circuit_figures(model, statistic, words)
    start_language_model(model, kernel)
    after = circuit_figures(model, statistic, words)
    assert abs(before["looks"]) < 0.4
    assert after["looks"] > 0.95 > after["looks_transposed"]


def test_parts_of_the_first_layer_add_up_to_its_scores() -> None:
    with seeded(0):
        model = LanguageModel(12, width=8, depth=1, heads=1, longest=6).double()
    torch.nn.init.normal_(model.blocks[0].attention_norm.bias)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    layer = model.blocks[0].attention
    x = model.blocks[0].attention_norm(model.embedding(tokens) + model.positions.table)
    with torch.no_grad():
        wanted = x @ layer.query.weight.mT @ (x @ layer.key.weight.mT).mT
    assert_exact(first_layer_terms(model, tokens).total(), wanted)


def test_the_loss_is_that_of_the_next_word() -> None:
    with seeded(0):
        model = LanguageModel(5, width=8, depth=1, heads=1)
    text = torch.arange(30) % 5
    made = next_word_loss(text, 4)(model, torch.tensor([2]), torch.tensor([2]))
    wanted = torch.nn.functional.cross_entropy(model(text[None, 2:6])[0], text[3:7])
    assert torch.allclose(made, wanted)


def test_known_words_keep_their_order_and_lose_what_stands_for_others() -> None:
    text = Words("one", np.array([3, 1, 0, 2, 4]), ("<unk>", "a", "<eos>", "b", "c"))
    assert known_tokens(text, 2).tolist() == [1, 0, BREAK]
    assert known_tokens(text, 3).tolist() == [1, 0, BREAK, 2]


def test_the_file_of_the_house_names_what_the_page_shows() -> None:
    jobs = cooccurrence_jobs(ROOT / "recipes" / "cooccurrence.toml", protocol="clean", seeds=2)
    assert {each.data for each in jobs} == {*TASKS}
    assert {each.variant for each in jobs} == {*COOCCURRENCE_PAGE.variants}
    for each in jobs:
        assert each.recipe["method"] in TASKS[each.data][0]
    assert FIELDS["cooccurrence"].page is COOCCURRENCE_PAGE


@pytest.mark.usefixtures("_text")
@pytest.mark.parametrize(
    ("data", "method"),
    [(data, method) for data, (methods, _) in TASKS.items() for method in methods if data != "similarity"],
)
def test_every_method_has_its_figures_and_a_seed_repeats_them(data: str, method: str) -> None:
    one, same = (cooccurrence_run(job(data, method=method)) for _ in range(2))
    assert one.figures == same.figures
    assert all(np.isfinite([*one.figures.values()]))
    if data == "head start":
        assert {"final_gain", "looks", "start_looks", "calls_spread", "share_place"} <= {*one.figures}
        assert len(one.curves["gain"]) == 2


@pytest.mark.usefixtures("_text")
def test_direction_and_neighbours_tell_something_here() -> None:
    order = {
        method: cooccurrence_run(job("order", method=method)).figures for method in ("symmetric", "directed")
    }
    assert order["symmetric"]["ties"] == 1
    assert order["directed"]["score"] > 0.8
    found = {
        method: cooccurrence_run(job("hidden word", method=method)).figures["score"]
        for method in ("unigram", "profiles", "directed")
    }
    assert found["directed"] > found["profiles"] > found["unigram"]


@pytest.mark.usefixtures("_text")
@pytest.mark.parametrize("method", ["symmetric", "directed", "skip-gram", "cbow"])
def test_vectors_are_judged_by_gensims_files(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gensim.models", reason="gensim is not installed")
    seen: list[tuple[int, ...]] = []

    def judged(words: tuple[str, ...], vectors: np.ndarray) -> dict[str, float]:
        seen.append((len(words), *vectors.shape))
        return {"score": 0.0}

    monkeypatch.setattr(cooccurrence, "similarity_figures", judged)
    outcome = cooccurrence_run(job("similarity", method=method))
    assert seen == [(12, 12, 4)]
    assert outcome.figures["fit_seconds"] > 0


def test_similarities_of_the_sets_words_are_read() -> None:
    pytest.importorskip("gensim.models", reason="gensim is not installed")
    words = (
        "king",
        "queen",
        "man",
        "woman",
        "tiger",
        "cat",
        "old",
        "new",
        "paris",
        "france",
        "rome",
        "italy",
    )
    draws = np.random.default_rng(0)
    vectors = draws.normal(size=(12, 6)).astype(np.float32)
    vectors[4] = vectors[5]
    vectors[1] = vectors[0] - vectors[2] + vectors[3]
    found = similarity_figures(
        (*words, "smart", "intelligent", "hard", "difficult"), np.vstack([vectors, vectors[:4]])
    )
    assert found["analogies_asked"] > 0
    assert -1 <= found["score"] <= 1
    assert found["unknown"] > 90


def test_a_missing_gensim_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gensim.models", None)
    with pytest.raises(MissingExtra, match="similarity_figures: needs gensim"):
        similarity_figures(("a",), np.ones((1, 2), np.float32))
    with pytest.raises(MissingExtra, match="cooccurrence: needs gensim"):
        cooccurrence._word2vec(Settings(), [["a"]], 0)


ONE, IDS = Words("one", np.array([0]), ("a",)), torch.zeros(1, 2, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: stretches(np.arange(5), length=2, count=3, seed=0), BadInput, "has 2 stretches of 2 words"),
        (lambda: stretches(np.arange(5), length=0, count=3, seed=0), BadInput, "stretches: length is 0"),
        (lambda: hidden_words(np.arange(5), window=1, count=3, least=4, seed=0), BadInput, "1 words from"),
        (lambda: order_figures(kernel_of(True), IDS, pairs="x"), UnknownName, "unknown pairs"),
        (lambda: neighbour_scores("x", kernel_of(True), torch.ones(12)), UnknownName, "unknown method 'x'"),
        (lambda: start_language_model(LanguageModel(9, width=8), kernel_of(True)), BadInput, "kernel of 12"),
        (lambda: first_layer_terms(LanguageModel(9, width=8, position="none"), IDS), BadInput, "are none"),
        (lambda: known_tokens(ONE, 3), BadInput, "known_tokens: 3 words, but 'one' has 1"),
        (lambda: cooccurrence_run(job("order", method="backwards")), UnknownName, "method 'backwards'"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.usefixtures("_text")
def test_a_vocabulary_larger_than_the_text_is_said() -> None:
    with pytest.raises(BadInput, match="head start: 99 words, but 'wikitext2' has 14"):
        cooccurrence_run(job("head start", method="random", words=99))
