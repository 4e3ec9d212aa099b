"""kernelhead completion: scripts that shells really complete with."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelhead.cli.__main__ import main
from kernelhead.cli.completion import SHELLS, script
from kernelhead.cli.verbs import VERBS

ASKED = {
    "kernelhead ins": "inspect",
    "kernelhead inspect k": "kpca",
    "kernelhead train --att": "--attention",
    "kernelhead train --attention primal": "primal primal+",
    "kernelhead train --norm p": "pre post",
    "kernelhead evaluate ru": "runs",
    "kernelhead evaluate runs/mine --js": "--json",
    "kernelhead train ser": "series.csv",
    "kernelhead graph runs --method f": "fci",
    "kernelhead reproduce ue": "uea",
    "kernelhead doctor --ver": "--verbose",
    "kernelhead completion z": "zsh",
}
FUNCTION = """
source "$1"; shift
for line in "$@"; do
    COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9; COMPREPLY=()
    _shtab_kernelhead
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of every shell, a file and a folder that can be named."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        (folder / f"kernelhead.{shell}").write_text(script(shell), encoding="utf-8")
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "series.csv").touch()
    return folder


def need(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


def test_bash_completes_verbs_options_names_and_files(scripts: Path) -> None:
    command = [need("bash"), "-c", FUNCTION, "bash", "kernelhead.bash", *ASKED]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, check=True, timeout=60)
    assert dict(zip(ASKED, done.stdout.splitlines(), strict=True)) == ASKED
    assert done.stderr == ""


def test_a_key_completes_a_word_in_bash(scripts: Path) -> None:
    """Tab in an interactive shell: what it then shows on its line."""
    held, end = pty.openpty()
    shell = subprocess.Popen(
        [need("bash"), "--norc", "--noprofile", "-i"],
        cwd=scripts,
        env={**os.environ, "PS1": "> ", "TERM": "dumb", "INPUTRC": os.devnull, "HISTFILE": ""},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    shown, limit = "", time.monotonic() + 60
    try:
        os.write(held, b"source kernelhead.bash; echo rea''dy\n")
        while "\nready" not in shown and time.monotonic() < limit:
            shown += read(held)
        os.write(held, b"kernelhead comp\tba\t")
        while "completion bash" not in shown and time.monotonic() < limit:
            shown += read(held)
    finally:
        shell.kill()
        shell.wait()
        os.close(held)
    assert "kernelhead completion bash" in shown


def read(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], 1)
    return os.read(terminal, 4096).decode(errors="replace") if ready else ""


def test_zsh_takes_the_script(scripts: Path) -> None:
    subprocess.run([need("zsh"), "-n", "kernelhead.zsh"], cwd=scripts, check=True, timeout=60)


def test_fish_completes_too(scripts: Path) -> None:
    lines = "; ".join(f'complete -C "{words}"' for words in ("kernelhead ins", "kernelhead inspect kp"))
    command = [need("fish"), "--no-config", "-c", f"source kernelhead.fish; {lines}"]
    done = subprocess.run(command, cwd=scripts, capture_output=True, text=True, check=True, timeout=60)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["inspect", "kpca"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_verb(scripts: Path, shell: str) -> None:
    text = (scripts / f"kernelhead.{shell}").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if verb not in text] == []


def test_the_verb_prints_the_script(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == (scripts / "kernelhead.bash").read_text(encoding="utf-8") + "\n"


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bahs"]) == 2
    assert "completion: unknown shell 'bahs', did you mean 'bash'?" in capsys.readouterr().err


def test_a_missing_package_names_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert 'completion: needs shtab, which is not installed; run: pip install "kernelhead[cli]"' in (
        capsys.readouterr().err
    )
