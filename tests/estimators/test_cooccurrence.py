"""CooccurrenceEmbedding: what it finds, how it is looked up, written and read, and what is refused."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kernelhead.data import Words
from kernelhead.decomposition import ksvd_dense
from kernelhead.errors import BadInput, CheckpointError, UnknownName
from kernelhead.estimators import CooccurrenceEmbedding
from kernelhead.kernels import association, count_pairs

PETS, THINGS, PLACES = ("cat", "dog", "cow"), ("mat", "rug"), ("roof", "hill")


def sentences(count: int = 120, seed: int = 0) -> list[list[str]]:
    """Words of a group stand in the same places of a sentence."""
    draws = np.random.default_rng(seed)
    return [
        f"the {draws.choice(PETS)} sat on the {draws.choice(THINGS)}".split()
        if place % 2
        else f"rain fell over a {draws.choice(PLACES)}".split()
        for place in range(count)
    ]


TEXT = sentences()


def fitted(**options: Any) -> CooccurrenceEmbedding:
    return CooccurrenceEmbedding(**{"width": 4, "window": 2, **options}).fit(TEXT)


@pytest.mark.parametrize("directed", [False, True])
def test_words_of_one_group_are_nearest(directed: bool) -> None:
    model = fitted(directed=directed)
    assert {word for word, _ in model.most_similar("cat", topn=2)} == {"dog", "cow"}
    assert model.most_similar(["mat"], topn=1)[0][0] == "rug"
    assert model.most_similar(positive="roof", topn=1)[0] == ("hill", pytest.approx(1.0, abs=0.1))
    assert model.similarity("cat", "dog") > 0.9 > model.similarity("cat", "rain")


def test_vectors_are_the_kernel_svd_of_the_associations() -> None:
    model, text = fitted(power=1.0, least=1, shift=0.1, smoothing=0.5, weighting="flat"), [*TEXT]
    places = {word: place for place, word in enumerate(model.words_)}
    tokens = np.array([each for line in text for each in (*(places[word] for word in line), -1)])
    counts = count_pairs([tokens], len(places), window=2, weighting="flat", directed=False)
    found = ksvd_dense(torch.from_numpy(association(counts, shift=0.1, smoothing=0.5).toarray()), rank=4)
    assert np.allclose(model.vectors_, (found.left * found.values).numpy(), atol=1e-5)


def test_sums_and_differences_are_gensims() -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    model = fitted()
    theirs = gensim.KeyedVectors(4)
    theirs.add_vectors([*model.words_], model.vectors_)
    for positive, negative in (
        (["cat", "mat"], ["dog"]),
        (["rain"], []),
        ([], ["a"]),
        (["cat", "on"], ["sat", "the"]),
    ):
        wanted = theirs.most_similar(positive=positive, negative=negative, topn=5)
        found = model.most_similar(positive, negative, topn=5)
        # Words of one group are as near as each other but for rounding.
        assert np.allclose([score for _, score in found], [score for _, score in wanted], atol=1e-5)
        assert found[0][0] in {word for word, score in wanted if score > wanted[0][1] - 1e-5}
    assert model.similarity("cat", "mat") == pytest.approx(float(theirs.similarity("cat", "mat")), abs=1e-5)
    assert np.array_equal(model["cat"], theirs["cat"])
    assert np.array_equal(model[["cat", "mat"]], theirs[["cat", "mat"]])


def test_a_file_a_list_and_words_give_the_same_vectors(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(map(" ".join, TEXT)) + "\n", encoding="utf-8")
    names = tuple({word: None for line in TEXT for word in (*line, "<eos>")})
    places = [names.index(word) for line in TEXT for word in (*line, "<eos>")]
    sources = (
        tmp_path / "text.txt",
        [" ".join(line) for line in TEXT],
        Words("text", np.array(places), names),
    )
    for source in sources:
        other = CooccurrenceEmbedding(width=4, window=2).fit(source)
        assert other.words_ == fitted().words_
        assert np.array_equal(other.vectors_, fitted().vectors_)


def test_what_was_saved_is_loaded_to_the_last_bit_and_gensim_reads_it(tmp_path: Path) -> None:
    model = fitted()
    model.vectors_[0, 0] = np.float32(1e-38)
    model.save(tmp_path / "mine.txt")
    again = CooccurrenceEmbedding.load(tmp_path / "mine.txt")
    assert again.words_ == model.words_
    assert np.array_equal(again.vectors_, model.vectors_)
    assert again.most_similar("cat") == model.most_similar("cat")
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8").startswith(f"{len(model.words_)} 4\n")
    assert [each.name for each in tmp_path.iterdir()] == ["mine.txt"]
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    theirs = gensim.KeyedVectors.load_word2vec_format(tmp_path / "mine.txt")
    assert theirs.index_to_key == [*model.words_]
    assert np.array_equal(theirs.vectors, model.vectors_)
    theirs.save_word2vec_format(tmp_path / "theirs.txt")
    assert np.array_equal(CooccurrenceEmbedding.load(tmp_path / "theirs.txt").vectors_, model.vectors_)


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = fitted(), tmp_path / "mine.txt"
    model.save(file)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        model.save(file)
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


def test_sentences_become_mean_vectors() -> None:
    model = fitted()
    found = model.transform(["cat mat", "nothing known", ["cat"]])
    assert np.allclose(found[0], (model["cat"] + model["mat"]) / 2)
    assert not found[1].any()
    assert np.array_equal(found[2], model["cat"])
    assert model.transform([]).shape == (0, 4)
    scaled = make_pipeline(CooccurrenceEmbedding(width=3, window=2), StandardScaler()).fit_transform(TEXT)
    assert scaled.shape == (120, 3)
    assert model.get_feature_names_out().tolist() == [f"cooccurrenceembedding{place}" for place in range(4)]


def test_copies_agree_clones_are_not_fitted_and_a_seed_decides_nothing() -> None:
    model = fitted(random_state=3)
    assert np.array_equal(pickle.loads(pickle.dumps(model))["cat"], model["cat"])
    assert not any(name.endswith("_") for name in vars(clone(model)))
    assert np.allclose(model.vectors_, fitted(random_state=np.random.RandomState(5)).vectors_, atol=1e-5)
    assert "cat" in model
    assert "mouse" not in model
    assert fitted(most=5).words_ == model.words_[:5]


def test_an_option_changed_after_the_fit_changes_nothing(tmp_path: Path) -> None:
    model = fitted()
    model.set_params(width=3).save(tmp_path / "a.txt")
    assert CooccurrenceEmbedding.load(tmp_path / "a.txt").vectors_.shape[1] == 4
    assert model.transform(["nothing known", "cat"]).shape == (2, 4)


def stream() -> Iterator[list[str]]:
    yield from TEXT


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: CooccurrenceEmbedding().fit([]), BadInput, "the corpus is empty"),
        (lambda: CooccurrenceEmbedding().fit("to be"), BadInput, "got a str, expected a Path of a file"),
        (lambda: CooccurrenceEmbedding().fit(stream()), BadInput, "a generator, which can be read once"),
        (lambda: CooccurrenceEmbedding().fit(3), BadInput, "got a int, expected"),
        (lambda: fitted(width=0), BadInput, "CooccurrenceEmbedding: width is 0"),
        (lambda: fitted(width=99), BadInput, "width is 99, but 1[0-9] words occur 5 times or more"),
        (lambda: fitted(width=3, directed=True), BadInput, "width is 3, expected an even one"),
        (lambda: fitted(power=float("nan")), BadInput, "power is nan, expected a finite number"),
        (lambda: fitted(most=99), BadInput, "a vocabulary of 99 words is larger than the corpus"),
        (lambda: fitted(least=999), BadInput, "none of 1[0-9] words occurs 999 times"),
        (lambda: fitted(association="cube"), UnknownName, "unknown transform 'cube'"),
        (lambda: CooccurrenceEmbedding(width=1).fit(["a"] * 9), BadInput, "so that no pair was seen"),
        (lambda: fitted()["mouse"], BadInput, "the word 'mouse' is not among the 1[0-9] with a vector"),
        (lambda: fitted()[["cat", "mouse"]], BadInput, "the word 'mouse' is not among"),
        (lambda: fitted().most_similar("mouse"), BadInput, "the word 'mouse' is not among"),
        (lambda: fitted().most_similar(), BadInput, "neither a positive nor a negative word is given"),
        (lambda: fitted().most_similar("cat", topn=0), BadInput, "topn is 0"),
        (lambda: CooccurrenceEmbedding()["cat"], NotFittedError, "not fitted yet"),
        (lambda: CooccurrenceEmbedding().most_similar("cat"), NotFittedError, "not fitted yet"),
        (lambda: CooccurrenceEmbedding.load(Path("nowhere.txt")), CheckpointError, "nowhere.txt holds"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    "text", ["", "2 3\na 1 2 3\n", "1 3\na 1 2\n", "1 2\na 1 x\n", "1 1\na nan\n", "0 2\n"]
)
def test_a_file_that_is_cut_short_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"a\.txt holds no vectors in the text format of word2vec"):
        CooccurrenceEmbedding.load(tmp_path / "a.txt")


def test_a_word_with_a_blank_cannot_be_saved(tmp_path: Path) -> None:
    model = CooccurrenceEmbedding(width=2, window=2).fit([["new york", "is", "big"]] * 5)
    with pytest.raises(BadInput, match="the word 'new york' has a blank"):
        model.save(tmp_path / "a.txt")
