"""write_report and summary: their rows, their sections, what a page may hold, their words."""

import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernelhead import records
from kernelhead.errors import BadInput, CheckpointError, MissingExtra
from kernelhead.report import summary, write_report

VOID = {"meta", "br", "input"}
HEADINGS = {
    "summary": "Summary",
    "learning": "Learning curves",
    "objective": "The objective of kernel SVD",
    "spectra": "Singular values of every layer",
    "ranks": "Ranks of every layer",
    "maps": "Attention of one case",
    "kpca": "Kernel PCA of attention",
    "configuration": "Configuration",
    "origin": "Seed, date, machine and versions",
}


class Page(HTMLParser):
    """The tags, ids, headings and tables of a page; an unbalanced tag is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.headings: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
        elif tag == "h2":
            self.headings.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"th", "td"} & set(self.open):
            cells = self.tables[-1][-1]
            cells[-1] = " ".join((cells[-1] + " " + data).split())
        elif "h2" in self.open:
            self.headings[-1] += data

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]


def layer(path: str, kind: str, heads: list[list[float]]) -> dict[str, Any]:
    ranks = ("effective_rank", "energy_rank_90", "energy_rank_95", "energy_rank_99")
    return {"path": path, "kind": kind, "heads": heads} | {
        key: [position + head for head in range(len(heads))] for position, key in enumerate(ranks, start=1)
    }


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def build(name: str, *, finished: bool = True, penalty: bool = False, spectrum: bool = True) -> Path:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        config = {"data": "Vowels", "name": name, "attention": name, "epochs": 3, "lr": 0.001, "seed": 7}
        records.write_json(folder / records.CONFIG, config | ({"rank": 20} if penalty else {}))
        rows = [
            {"epoch": epoch, "train_loss": 1 / epoch, "train_accuracy": 0.2 * epoch, "seconds": float(epoch)}
            | {"valid_loss": 2 / epoch, "valid_accuracy": [0.5, 0.75, 0.7][epoch - 1]}
            | ({"penalty": 0.1, "objective_left": 0.5, "objective_right": 0.25} if penalty else {})
            | ({"objective_trace": epoch} if penalty else {})
            for epoch in (1, 2, 3)
        ]
        records.write_lines(folder / records.METRICS, rows)
        if finished:
            records.write_json(folder / records.RESULT, result(name))
        if finished and spectrum:
            layers = [
                layer(f"blocks.{i}.attention", "PrimalAttention", [[1.0, 0.5], [1.0, 0.1]]) for i in (0, 1)
            ]
            records.write_json(folder / records.SPECTRUM, {"layers": layers, "cases": 4, "length": 29})
        return folder

    return build


def aligned(path: str, verdict: str, explained: list[float | None]) -> dict[str, Any]:
    heads = [
        {"explained": value, "cosine_mean": value, "span_residual": 0.25, "bessel_rate": 1.0}
        for value in explained
    ]
    lower = [head | {"explained": 0.5, "cosine_mean": 0.125} for head in heads]
    return {"path": path, "kind": "SoftmaxAttention", "verdict": verdict, "heads": heads} | {
        "baselines": {"permuted": lower, "redrawn": heads}
    }


def result(name: str) -> dict[str, Any]:
    return {
        **{"name": name, "data": "Vowels", "test_accuracy": 0.9, "valid_accuracy": 0.75, "best_epoch": 2},
        **{"parameters": 1234567, "seconds_per_epoch": 1.2345, "peak_memory_mib": 1843.2, "seed": 7},
        **{"machine": {"cpu": "abacus"}, "versions": {"torch": "2.9"}, "date": "2025-01-02T03:04:05Z"},
        **{"train_cases": 216, "valid_cases": 54, "test_cases": 400, "classes": 9},
    }


def read(runs: list[Path], **options: str) -> str:
    return write_report(runs, runs[0].parent / "page" / "report.html", **options).read_text("utf-8")


def test_summary_of_a_finished_run(make: Callable[..., Path]) -> None:
    assert summary([make("softmax")]) == [
        {
            **{"run": "softmax", "data": "Vowels", "attention": "softmax", "finished": True, "seed": 7},
            **{"epochs": 3, "planned": 3, "best_epoch": 2, "valid_accuracy": 0.75, "test_accuracy": 0.9},
            **{"test_error": pytest.approx(0.015), "parameters": 1234567},
            **{"seconds_per_epoch": 1.2345, "peak_memory_mib": 1843.2},
        }
    ]


@pytest.mark.parametrize("cases", [None, 0, -1])
def test_no_cases_have_no_error(make: Callable[..., Path], cases: int | None) -> None:
    run = make("softmax")
    records.write_json(run / records.RESULT, result("softmax") | {"test_cases": cases})
    assert summary([run])[0]["test_error"] is None


def test_a_folder_of_records_is_not_unfinished(tmp_path: Path) -> None:
    records.write_json(tmp_path / records.CONFIG, {"name": "bert", "data": "text.txt"})
    assert summary([tmp_path])[0]["finished"]
    assert "unfinished" not in read([tmp_path])


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("softmax", spectrum=False)
    before = read([run], title="old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(CheckpointError, match=r"cannot write .*report.html: No space left on device"):
            read([run], title="new")
    assert [path.name for path in (run.parent / "page").iterdir()] == ["report.html"]
    assert (run.parent / "page" / "report.html").read_text("utf-8") == before


def test_summary_of_an_unfinished_run_is_what_is_known_so_far(make: Callable[..., Path]) -> None:
    [row] = summary([make("softmax", finished=False)])
    assert (row["finished"], row["epochs"], row["best_epoch"], row["valid_accuracy"]) == (False, 3, 2, 0.75)
    assert row["seconds_per_epoch"] == pytest.approx(2)
    assert row["test_accuracy"] is row["parameters"] is row["peak_memory_mib"] is row["test_error"] is None


def test_rows_follow_the_order_of_the_runs_and_a_run_counts_once(make: Callable[..., Path]) -> None:
    first, second = make("a"), make("b")
    rows = summary([first, second])
    assert summary([second, first, second]) == rows[::-1]


def test_equal_names_are_told_apart_by_their_folders(make: Callable[..., Path], tmp_path: Path) -> None:
    runs = [make("a"), make("a"), make("b")]
    assert [row["run"] for row in summary(runs)] == ["a (run0)", "a (run1)", "b"]
    deep = tmp_path / "deep" / "run0"
    deep.parent.mkdir()
    runs[0].rename(deep)
    runs[1].rename(runs[0])
    assert [row["run"] for row in summary([deep, runs[0]])] == ["a (deep/run0)", f"a ({tmp_path.name}/run0)"]


def test_the_cells_of_a_page(make: Callable[..., Path]) -> None:
    page = Page(read([make("softmax"), make("primal", penalty=True), make("nystrom", finished=False)]))
    table, ranks, config, origin = page.tables
    assert page.headings == [name for key, name in HEADINGS.items() if key not in ("kpca", "maps")]
    assert table[0][:4] == ["Run", "Test", "Validation", "Parameters"]
    assert table[0][4:] == ["Seconds per epoch", "Peak memory, MiB", "Attention", "Data"]
    measured = ["90.0 ± 1.5", "75.0 epoch 2", "1 234 567", "1.23", "1 843"]
    assert table[1] == ["● softmax", *measured, "softmax", "Vowels"]
    assert table[3][:3] == ["▲ nystrom unfinished: 3 of 3 epochs", "–", "75.0 epoch 2"]
    assert ranks[1][:3] == ["blocks.0.attention", "● softmax", "PrimalAttention heads: 2, components: 2"]
    assert ranks[1][3:] == ["1.5 1–2", "2.5 2–3", "3.5 3–4", "4.5 4–5"]
    assert ranks[2][:2] == ["blocks.0.attention", "■ primal"]
    assert ["lr", "0.001", "0.001", "0.001"] in config
    assert ["rank ≠", "–", "20", "–"] in config
    assert ["seed", "7", "7", "7"] in origin
    assert ["machine: cpu", "abacus", "abacus", "–"] in origin
    assert ["versions: torch", "2.9", "2.9", "–"] in origin
    assert ["spectrum length", "29", "29", "–"] in origin


def test_charts_of_a_page(make: Callable[..., Path]) -> None:
    page = Page(read([make("softmax"), make("primal", penalty=True)]))
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    assert labels == [
        "Line chart: loss by epoch; runs: 2",
        "Line chart: accuracy by epoch; runs: 2",
        "Line chart: objective by epoch; runs: 1",
        "Line chart: objective left by epoch; runs: 1",
        "Line chart: objective right by epoch; runs: 1",
        "Line chart: objective trace by epoch; runs: 1",
        "Line chart: penalty by epoch; runs: 1",
        "Line chart: cumulated singular values of blocks.0.attention; runs: 2",
        "Line chart: decay of the singular values of blocks.0.attention; runs: 2",
        "Line chart: cumulated singular values of blocks.1.attention; runs: 2",
        "Line chart: decay of the singular values of blocks.1.attention; runs: 2",
    ]


def test_a_page_loads_nothing_and_repeats_no_id(make: Callable[..., Path]) -> None:
    text = read([make("softmax"), make("primal", penalty=True)])
    page = Page(text)
    assert len(set(page.ids())) == len(page.ids())
    assert not re.search(r"https?://|//[a-z]|@import|<link|<img|\bsrc=|\bon\w+=", text)
    assert text.count("<script") == 1
    policy = next(str(attrs["content"]) for _, attrs in page.tags if "http-equiv" in attrs)
    script = text.split("<script>")[1].split("</script>")[0].encode()
    assert f"script-src 'sha256-{b64encode(sha256(script).digest()).decode()}';" in policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")
    links = {str(attrs["href"]) for _, attrs in page.tags if "href" in attrs}
    assert links <= {f"#{name}" for name in page.ids()}
    assert len(text) < 200_000


def test_a_page_can_be_read_aloud(make: Callable[..., Path]) -> None:
    text = read([make("softmax"), make("primal")])
    page = Page(text)
    assert '<html lang="en">' in text
    assert all(attrs.get("scope") for tag, attrs in page.tags if tag == "th")
    assert all(
        attrs.get("role") == "img" and attrs.get("aria-label") for tag, attrs in page.tags if tag == "svg"
    )
    for tag, inner in (("table", "caption"), ("figure", "figcaption")):
        assert len(re.findall(f"<{tag}[ >]", text)) == len(re.findall(f"<{inner}[ >]", text)) > 0


def test_the_same_records_give_the_same_page(make: Callable[..., Path]) -> None:
    runs = [make("softmax"), make("primal")]
    assert read(runs) == read(runs)


def test_names_titles_and_paths_are_inert(make: Callable[..., Path]) -> None:
    bad = "<script>alert('x')</script>\"&amp;$x$"
    run = make(bad)
    records.write_json(run / records.SPECTRUM, {"layers": [layer(bad, bad, [[1.0]])]})
    records.write_json(run / records.RESULT, result(bad) | {"machine": {bad: bad}})
    text = read([run], title=bad)
    assert text.count("<script") == 1
    assert "alert('x')" not in text
    page = Page(text)
    assert page.tables[0][1][0] == f"● {bad}"
    assert [f"machine: {bad}", bad] in page.tables[3]


def test_sections_appear_only_with_their_records(make: Callable[..., Path]) -> None:
    run = make("softmax", spectrum=False)
    assert Page(read([run])).headings == [
        HEADINGS[key] for key in ("summary", "learning", "configuration", "origin")
    ]
    (run / records.METRICS).unlink()
    (run / records.RESULT).unlink()
    records.write_json(run / records.CONFIG, {})
    page = Page(read([run]))
    assert page.headings == [HEADINGS["summary"], HEADINGS["configuration"]]
    assert page.tables[0][1] == ["● run0 unfinished: 0 epochs", *"–––––––"]


def test_a_loss_that_was_not_finite_is_a_gap(make: Callable[..., Path]) -> None:
    run = make("softmax")
    lines = [{"epoch": 1, "train_loss": None}, {"epoch": 2, "train_loss": float("inf")}, {"epoch": 3}]
    run.joinpath(records.METRICS).write_text("\n".join(map(json.dumps, lines)))
    assert HEADINGS["learning"] not in read([run])
    run.joinpath(records.RESULT).write_text(
        json.dumps({"test_accuracy": float("nan"), "peak_memory_mib": None})
    )
    assert Page(read([run])).tables[0][1][:2] == ["● softmax", "–"]


def test_a_layer_that_only_one_run_has(make: Callable[..., Path]) -> None:
    first, second = make("a"), make("b")
    records.write_json(second / records.SPECTRUM, {"layers": [layer("other", "SoftmaxAttention", [])]})
    page = Page(read([first, second]))
    assert [row[0] for row in page.tables[1][1:]] == ["blocks.0.attention", "blocks.1.attention", "other"]
    assert page.tables[1][3][2:] == ["SoftmaxAttention heads: 0, components: 0", *"––––"]


def test_kernel_pca_of_runs(make: Callable[..., Path]) -> None:
    first, second, third = make("a"), make("b"), make("c")
    layers = [aligned("one", "holds", [1.0, 0.5]), aligned("two", "cannot be told", [None, None])]
    records.write_json(
        first / records.KPCA, {"layers": layers, "cases": 4, "length": 29, "seed": 3, "skipped": {}}
    )
    records.write_json(third / records.KPCA, {"layers": [aligned("one", "does not hold", [0.5, 0.5])]})
    page = Page(read([first, second, third]))
    table = page.tables[2]
    assert page.headings == [name for key, name in HEADINGS.items() if key not in ("objective", "maps")]
    assert table[0] == ["Layer", "Run", "Verdict", "Explained", "Cosine", "Span residual", "Bessel broken"]
    assert table[1][:4] == ["one", "● a", "holds", "0.75 permuted 0.5 redrawn 0.75"]
    assert table[2][:3] == ["one", "▲ c", "does not hold"]
    assert table[3][:4] == ["two", "● a", "cannot be told", "– permuted 0.5 redrawn –"]
    assert ["kernel PCA seed", "3", "–", "–"] in page.tables[4]
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    # The figure of a layer that no head has is not drawn.
    assert labels[-1] == "Line chart: what the values of one explain, by head; runs: 2"


def test_importing_report_does_not_import_torch() -> None:
    code = (
        "import sys, kernelhead.report; sys.exit(bool({'torch', 'jinja2', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="report: no run folder is given, expected at least one"):
        write_report([], tmp_path / "report.html")


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_that_is_no_run_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=f"{name} is not a run folder: it has no config.json"):
        summary([tmp_path / name])


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (records.CONFIG, "{", r"config.json is not a readable JSON file"),
        (records.METRICS, '{"epoch": 1}\n{"epo', r"metrics.jsonl, line 2 is not JSON"),
        (records.METRICS, "3", r"metrics.jsonl, line 1 holds a int, expected a JSON object"),
        (records.METRICS, "{}", r"metrics.jsonl, line 1 has no epoch"),
        (records.METRICS, '{"epoch": "one"}', r"metrics.jsonl, line 1: epoch is 'one', expected a number"),
        (records.METRICS, f'{{"epoch": 1, "penalty": 1{"0" * 400}}}', r"line 1: penalty is 10000"),
        (records.RESULT, f'{{"parameters": 1{"0" * 400}}}', r"result.json: parameters is 10000"),
        (
            records.SPECTRUM,
            f'{{"layers": [{{"path": "a", "heads": [[1{"0" * 400}]], "effective_rank": []}}]}}',
            r"spectrum.json: expected layers",
        ),
        (records.RESULT, '{"parameters": "many"}', r"result.json: parameters is 'many', expected a number"),
        (
            records.RESULT,
            '{"machine": "abacus"}',
            r"result.json: machine is 'abacus', expected a JSON object",
        ),
        (
            records.SPECTRUM,
            '{"cases": 3}',
            r"spectrum.json: expected layers, each with a path, heads and effec",
        ),
        (records.SPECTRUM, '{"layers": 3}', r"spectrum.json: expected layers, each with"),
        (
            records.SPECTRUM,
            '{"layers": [{"path": "a", "heads": [["b"]]}]}',
            r"spectrum.json: expected layers",
        ),
        (records.KPCA, '{"cases": 3}', r"kpca.json: expected layers, each with a path, a verdict, and heads"),
        (records.KPCA, '{"layers": [{"path": "a", "heads": [], "baselines": []}]}', r"kpca.json: expected"),
        (
            records.KPCA,
            '{"layers": [{"path": "a", "verdict": 3, "heads": [], "baselines": {"b": []}}]}',
            r"kpca",
        ),
        (records.KPCA, '{"layers": [{"path": "a", "verdict": "b", "heads": [], "baselines": {}}]}', r"kpca"),
        (
            records.KPCA,
            '{"layers": [{"path": "a", "verdict": "b", "heads": [{}], "baselines": {"c": []}}]}',
            r"kpca.json: expected layers",
        ),
    ],
)
def test_a_broken_record_is_named(file: str, text: str, words: str, make: Callable[..., Path]) -> None:
    run = make("softmax")
    (run / file).write_text(text)
    with pytest.raises(BadInput, match=words):
        summary([run])


def test_a_spectrum_must_be_finite(make: Callable[..., Path]) -> None:
    run = make("softmax")
    broken = {"layers": [layer("a", "PrimalAttention", [[float("nan")]])]}
    (run / records.SPECTRUM).write_text(json.dumps(broken))
    with pytest.raises(BadInput, match="of finite numbers"):
        summary([run])


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named(
    package: str, make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("softmax")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf'needs {package}, .*pip install "kernelhead\[cli\]"'):
        read([run])
    assert not list(run.parent.glob("page/*"))
