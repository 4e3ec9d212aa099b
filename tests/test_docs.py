"""The documentation: links lead somewhere, commands exist, every claim has one, pictures are as drawn."""

import ast
import functools
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from kernelhead.kernels import KERNELS
from kernelhead.models import ATTENTIONS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SYSTEMS = (
    "primal",
    "rpc",
    "time",
    "datapoints",
    "causal",
    "flow",
    "transport",
    "reranking",
    "depth",
    "cooccurrence",
)
VERBS = {"build": "kernels", "factor": "decomposition", "apply": "attention", "read": "reading"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@functools.cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", text_of(page))


def anchors(page: Path) -> set[str]:
    """What a heading is called in a link: letters, digits and hyphens, in lower case."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return set(plain)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", prose(page))):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link}: there is no such heading"


def commands(page: Path) -> Iterator[str]:
    """What a page tells to type, in blocks of their own."""
    for language, block in FENCE.findall(text_of(page)):
        if language in ("python", "toml"):
            continue
        known = dict(re.findall(r'^(\w+)="([^"]*)"$', block, re.MULTILINE))
        for line in block.splitlines():
            line = re.split(r"\s(?:#|>|\||&&)", line)[0].strip()
            for name, value in known.items():
                line = line.replace(f"${name}", value)
            if re.match(r"(kernelhead|python|pytest) \S", line):
                yield line


def mentions(page: Path) -> Iterator[str]:
    """What the sentences of a page call by its name, whole or in part."""
    for code in CODE.findall(prose(page)):
        if re.match(r"kernelhead [a-z]+\b|pytest |python (-m )?\w+[./]", code):
            yield " ".join(code.split())


@functools.cache
def parser(verb: str):  # type: ignore[no-untyped-def]
    from kernelhead.cli.verbs import parser_of

    return parser_of([verb])


def check_command(command: str) -> None:
    """Fail where a command names what there is not: a verb, an option, a file, a test, a field."""
    who, *words = shlex.split(command)
    if who == "kernelhead":
        check_verb(command, words)
    elif who == "pytest":
        check_tests(command, words)
    elif words[0] == "-m":
        module = ROOT / Path(*words[1].split("."))
        assert module.with_suffix(".py").exists() or words[1] in ("venv", "pip", "pytest"), command
    else:
        assert not words[0].endswith(".py") or (ROOT / words[0]).exists(), command


def check_verb(command: str, words: list[str]) -> None:
    from kernelhead.cli.verbs import VERBS

    assert words[0] in VERBS, f"{command}: there is no such verb"
    if any(word in ("VERB", "...", "--help") for word in words):
        return
    chosen = parser(words[0]).parse_args(words)[words[0]]
    if words[0] == "reproduce" and chosen.field != "FIELD":
        recipe = ROOT / "recipes" / f"{chosen.field}.toml"
        known = text_of(recipe) + text_of(ROOT / "docs" / "reproduce.md")
        assert tomllib.loads(text_of(recipe)), command
        for name in chosen.only or []:
            assert name in known, f"{command}: {recipe.name} has no {name}"
    if words[0] == "bench" and chosen.name != "all":
        assert (ROOT / "benchmarks" / f"bench_{chosen.name}.py").exists(), f"{command}: no such question"
    if words[0] == "train" and getattr(chosen, "attention", None):
        for name in re.split(r"[,+]", chosen.attention):
            assert name in {*ATTENTIONS, "", "..."}, f"{command}: no such attention"


def check_tests(command: str, words: list[str]) -> None:
    files = [word for word in words if word.startswith("tests/")]
    for file in files:
        assert (ROOT / file).exists(), f"{command}: {file} is not there"
    if "-k" in words and files:
        asked = Expression.compile(words[words.index("-k") + 1])
        assert any(
            asked.evaluate(lambda name, said=said, **_: name.lower() in said)
            for file in files
            for said in names_of(ROOT / file)
        ), f"{command}: no test has such a name"


@functools.cache
def names_of(file: Path) -> list[str]:
    """Names of the tests of a file, each with its marks and cases, in lower case."""
    tree = ast.parse(text_of(file))
    cases = " ".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    return [
        f"{node.name} {' '.join(map(ast.unparse, node.decorator_list))} {cases}".lower()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@every_page
def test_commands_exist(page: Path) -> None:
    for command in commands(page):
        try:
            check_command(command)
        except (Exception, SystemExit) as error:  # whatever the parser says, say which command it was
            raise AssertionError(f"{command}: {error}") from error


@every_page
def test_commands_in_sentences_exist(page: Path) -> None:
    from kernelhead.cli.verbs import VERBS

    for command in mentions(page):
        who, verb, *words = shlex.split(command)
        if who != "kernelhead":
            check_command(command)
            continue
        assert verb in VERBS, f"{command}: there is no such verb"
        known = parser(verb)._subcommands_action._name_parser_map[verb].format_help()
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", known), f"{command}: {verb} has no {option}"


def rows() -> Iterator[tuple[str, str]]:
    """The claims of the page with how each can be seen; `the same` is what the row before it has."""
    seen = ""
    for line in text_of(DOCS / "claims.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[-1].startswith("how to see it"):
            seen = "header"
        elif not line.startswith("|"):
            seen = ""
        elif seen and not line.startswith("|-"):
            seen = seen if cells[-1].startswith("the same") else cells[-1]
            yield cells[0], seen


def test_every_claim_has_a_command() -> None:
    claims = list(rows())
    assert len(claims) > 80
    for claim, seen in claims:
        found = [code for code in CODE.findall(seen) if re.match(r"kernelhead |pytest |python ", code)]
        assert found, f"{claim}: no command in {seen!r}"
        for command in found:
            check_command(command)


def test_every_paper_of_the_index_has_claims() -> None:
    papers = re.findall(r"arXiv (\d{4}\.\d{5})", text_of(DOCS / "README.md"))
    assert len(papers) == 10
    assert [paper for paper in papers if paper not in text_of(DOCS / "claims.md")] == []
    assert [paper for paper in papers if paper not in text_of(DOCS / "glossary.md")] == []


def test_what_was_not_run_is_called_so() -> None:
    page = text_of(DOCS / "claims.md")
    part = page[page.index("## What is not told") : page.index("## Kernel PCA of trained attention")]
    untold = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
    assert len(untold) > 10
    for _, _, why, _ in untold:
        assert why.startswith("not told")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_has_formula_example_limits_and_figures(name: str) -> None:
    page = text_of(DOCS / f"{name}.md")
    assert "$$" in page
    assert ">>> " in page
    assert re.search(r"^## When", page, re.MULTILINE)
    assert re.search(r"\d\.\d+ ±|\d+\.\d+ s\b|\d %", page)


@pytest.mark.slow
def test_the_start_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelhead.cli.__main__ import main

    page = DOCS / "start.md"
    files = next(block for language, block in FENCE.findall(text_of(page)) if "import csv" in block)
    typed = [shlex.split(command)[1:] for command in commands(page) if command.startswith("kernelhead ")]
    monkeypatch.chdir(tmp_path)
    exec(compile(files, str(page), "exec"), {})
    assert len(typed) == 7
    for words in typed:
        words = [
            "2" if before == "--epochs" else word for before, word in zip(["", *words], words, strict=False)
        ]
        assert main(words) == 0, words
    assert {"primal+", "softmax"} <= {*re.findall(r"primal\+|softmax", text_of(tmp_path / "report.html"))}
    assert (tmp_path / "predictions.csv").read_text(encoding="utf-8").count("\n") == 31


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_page(verb: str) -> None:
    page = text_of(DOCS / f"{VERBS[verb]}.md")
    assert page.lower().startswith(f"# {verb}: ")
    assert ">>> " in page
    assert "\n## When" in page


def test_the_index_has_every_page() -> None:
    listed = {link.partition("#")[0] for link in LINK.findall(text_of(DOCS / "README.md"))}
    missing = {page.name for page in DOCS.glob("*.md")} - listed - {"README.md"}
    assert not missing


def test_the_kernels_page_has_every_kernel() -> None:
    assert {name for name in KERNELS if f"| `{name}` |" not in text_of(DOCS / "kernels.md")} == set()


def test_the_attention_page_has_every_attention() -> None:
    page = text_of(DOCS / "attention.md")
    assert {name for name in ATTENTIONS if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", ["architecture.svg", "walk.svg"])
def test_pictures_are_as_drawn_and_can_be_read_out(name: str) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))
    picture = text_of(DOCS / name)
    assert script["PICTURES"][name]() == picture, "python scripts/pictures.py draws it anew"
    assert 'role="img"' in picture
    assert re.search(r"<title id=\"title\">.+</title>\s*<desc id=\"desc\">.{80,}</desc>", picture)
    assert "prefers-color-scheme: dark" in picture
    assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?(https?:|//)", picture)


def test_pictures_of_the_house_show_its_floors() -> None:
    house = runpy.run_path(str(ROOT / "tests" / "test_house.py"))
    drawn = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))["FLOORS"]
    assert [set(rooms) for _, rooms in reversed(drawn)] == [set(rooms) for rooms in house["FLOORS"]]


@every_page
def test_pictures_have_words_for_those_who_do_not_see_them(page: Path) -> None:
    for words, _ in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text_of(page)):
        assert len(words) > 10
