"""kernelhead doctor: what is installed, what it can compute on, and whether it computes right."""

import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from kernelhead.cli.health import backends, devices, extras, self_test, versions
from kernelhead.cli.voice import say_json

HELP = "versions, devices, extras and back ends, and a self-test of two seconds that really computes"
EXAMPLE = "kernelhead doctor\nkernelhead doctor --json"


def arguments(parser: ArgumentParser) -> None:
    """What the verb takes."""
    parser.add_argument("--json", action="store_true", help="print a JSON record")


def run(chosen: Any, given: list[str]) -> int:
    """Look, compute, print; 1 where something that must work does not."""
    record = examine()
    if chosen.json:
        say_json(record)
    else:
        print("\n".join(lines(record)))
    return 0 if record["healthy"] else 1


def examine() -> dict[str, Any]:
    """All that there is to say, as one record."""
    started = time.perf_counter()
    record: dict[str, Any] = {"versions": versions()}
    try:
        record |= {"devices": devices(), "backends": backends()}
    except Exception:  # a torch that does not load: the self-test fails with its words
        record |= {"devices": [], "backends": {}}
    checks = self_test()
    missing = [name for name, found in record["versions"].items() if found is None]
    return {
        **record,
        "extras": extras(),
        "checks": [asdict(check) for check in checks],
        "seconds": time.perf_counter() - started,
        "healthy": not missing and all(check.passed for check in checks),
    }


def lines(record: dict[str, Any]) -> list[str]:
    """The record for a reader.

    Example:
        >>> checks = [{"passed": False, "name": "sums", "said": "no", "seconds": 1.0}]
        >>> bare = {"versions": {}, "devices": [], "backends": {}, "extras": {"ts": {"aeon": None}}}
        >>> print(*lines({**bare, "checks": checks, "seconds": 1.0, "healthy": False}), sep="\\n")
        extra ts  missing aeon; run: pip install "kernelhead[ts]"
        FAILED    sums: no (1.00 s)
        not healthy: 1 of 1 checks failed, 1.0 s
    """
    rows = [(name, found or "missing") for name, found in record["versions"].items()]
    rows += [("device", each) for each in record["devices"]]
    rows += [(f"back end {name}", said) for name, said in record["backends"].items()]
    for extra, packages in record["extras"].items():
        missing = ", ".join(name for name, found in packages.items() if found is None)
        there = ", ".join(f"{name} {found}" for name, found in packages.items() if found)
        cure = f'missing {missing}; run: pip install "kernelhead[{extra}]"'
        rows.append((f"extra {extra}", cure if missing else there))
    for check in record["checks"]:
        word = "passed" if check["passed"] else "FAILED"
        rows.append((word, f"{check['name']}: {check['said']} ({check['seconds']:.2f} s)"))
    failed = sum(not check["passed"] for check in record["checks"])
    end = "healthy" if record["healthy"] else "not healthy"
    last = f"{end}: {failed} of {len(record['checks'])} checks failed, {record['seconds']:.1f} s"
    wide = max(len(name) for name, _ in rows)
    return [*(f"{name:{wide}}  {said}" for name, said in rows), last]
