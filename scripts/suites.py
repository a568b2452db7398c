"""Runs two public conformance suites against a running service and holds what fails against what is expected to: `make suites`.

Open Responses' compliance cases (openresponses.org) and OGX's integration tests, both from checkouts and as they are. Exits 1 if something
fails that is no known deviation, or a known deviation does not. The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
import suites_engine
import suites_expected as expected

SCRIPTED = "scripted"
TENANT = "suites"
PATIENCE_S = 7200
NODE = Path(".everturn/suites-node")
PYTHON = Path(".everturn/suites/bin/python")
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    url: str
    key: str
    other_key: str
    """Of another tenant."""
    model: str
    scripted: str
    """Of the model that calls tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: str
    outcome: str
    """`passed`, `failed`, `skipped` by the suite itself, or `left out`."""
    said: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the API, without /v1")
    parser.add_argument(
        "--keys", type=Path, default=Path(".everturn/keys.json"), help="as `make up` keeps them"
    )
    parser.add_argument(
        "--model", default=SCRIPTED, help="alias that is asked what needs no scripted answer (%(default)s)"
    )
    given = parser.parse_args()
    open_responses, ogx = (Path(os.environ[name]).absolute() for name in ("OPEN_RESPONSES", "OGX"))
    try:
        with service_of(given.url, given.keys, given.model) as service:
            runs = {
                "open_responses": (
                    run_open_responses(service, open_responses),
                    expected.OPEN_RESPONSES_DEVIATIONS,
                ),
                "ogx": (run_ogx(service, ogx), expected.OGX_DEVIATIONS),
            }
    except (OSError, ValueError, KeyError, httpx.HTTPError, RuntimeError) as error:
        sys.stderr.write(f"suites: {error!r}. Is the stack up (`make up`)?\n")
        return 1
    counts = {name: told(name, outcomes, known) for name, (outcomes, known) in runs.items()}
    commits = {"open_responses": commit_of(open_responses), "ogx": commit_of(ogx)}
    print(json.dumps({name: {"commit": commits[name], **counts[name]} for name in counts}))
    return int(any(count["unexpected"] for count in counts.values()))


@contextmanager
def service_of(url: str, keys: Path, model: str) -> Iterator[Service]:
    kept = json.loads(keys.read_text("utf-8"))
    headers = {"authorization": f"Bearer {kept['operator_key']}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as admin:
        admin.put(f"/admin/tenants/{TENANT}", json={}).raise_for_status()
        made = admin.post("/admin/keys", json={"scope": "tenant", "tenant": TENANT, "label": "make suites"})
        other = made.raise_for_status().json()
        with suites_engine.serving(admin) as alias:
            yield Service(
                url=f"{url}/v1",
                key=kept["tenant_key"],
                other_key=other["secret"],
                model=alias if model == SCRIPTED else model,
                scripted=alias,
            )
        admin.delete(f"/admin/keys/{other['key_id']}").raise_for_status()


def run_open_responses(service: Service, checkout: Path) -> list[Outcome]:
    """In a copy that has zod beside it: its own folder stays as it is."""
    home = NODE / "openresponses"
    shutil.rmtree(home, ignore_errors=True)
    for part in ("bin", "src"):
        shutil.copytree(checkout / part, home / part)
    names = open_responses(home, service, service.model, ["?"]).stderr.partition("Available test IDs:")[2]
    cases = [name.strip() for name in names.split(",")]
    left = [c for c in cases if any(c in named([c], one.cases) for one in expected.OPEN_RESPONSES_LEFT_OUT)]
    scripted = named(cases, expected.OPEN_RESPONSES_SCRIPTED)
    asked = [case for case in cases if case not in (*left, *scripted)]
    outcomes = [Outcome(case=case, outcome="left out", said="") for case in left]
    for model, some in ((service.model, asked), (service.scripted, scripted)):
        done = open_responses(home, service, model, some)
        outcomes += [
            Outcome(case=one["id"], outcome=one["status"], said="\n".join(one.get("errors") or ()))
            for one in json.loads(done.stdout)["results"]
        ]
    return outcomes


def open_responses(
    home: Path, service: Service, model: str, cases: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    command = ["node", "../node_modules/tsx/dist/cli.mjs", "bin/compliance-test.ts", "--json"]
    return subprocess.run(
        [*command, "--base-url", service.url, "--model", model, "--filter", ",".join(cases)],
        cwd=home,
        env=os.environ | {"OPENRESPONSES_API_KEY": service.key},
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def run_ogx(service: Service, checkout: Path) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        asked = {
            "base_url": service.url,
            "key": service.key,
            "model": service.model,
            "scripted_model": service.scripted,
            "scripted": expected.OGX_SCRIPTED,
            "left_out": [case for one in expected.OGX_LEFT_OUT for case in one.cases],
            "report": str(report),
        }
        environment = {
            "EVERTURN_SUITES": json.dumps(asked),
            "PYTHONPATH": os.pathsep.join(map(str, (checkout / "src", HERE))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ALICE_TOKEN": service.key,
            "BOB_TOKEN": service.other_key,
            "OGX_TEST_INFERENCE_MODE": "live",
        }
        subprocess.run(
            [str(PYTHON.absolute()), "-m", "pytest", "-q", "--noconftest", "-p", "suites_ogx"]
            + ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(checkout), "--tb=short"]
            + ["--override-ini", "asyncio_mode=auto"]
            + [f"{expected.CASES}{folder}" for folder in expected.FOLDERS],
            cwd=checkout,
            env=os.environ | environment,
            check=False,
            timeout=PATIENCE_S,
        )
        found = json.loads(report.read_text("utf-8"))
    return [Outcome(case=case, **what) for case, what in found.items()]


def told(suite: str, outcomes: Iterable[Outcome], known: Sequence[expected.Deviation]) -> Mapping[str, Any]:
    """Prints what is not as it should be; counts all."""
    counts: Counter[str] = Counter()
    for one in sorted(outcomes, key=lambda outcome: outcome.case):
        deviation = next((d for d in known if one.case in named([one.case], d.cases)), None)
        kind = one.outcome
        if deviation is not None and one.outcome == "failed" and deviation.says in one.said:
            kind = "deviations"
        elif one.outcome == "failed" or deviation is not None:
            kind = "unexpected"
            wanted = "pass" if deviation is None else f"fail with {deviation.says!r}"
            print(f"{suite}: {one.case} {one.outcome}; it was expected to {wanted}\n{one.said}")
        counts[kind.replace(" ", "_")] += 1
    kinds = ("passed", "deviations", "skipped", "left_out", "unexpected")
    return {kind: counts[kind] for kind in kinds}


def named(cases: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """As fnmatch does, with the brackets of pytest's parameters taken as they are."""
    return [
        case
        for case in cases
        if any(fnmatchcase(case.replace("[", "("), pattern.replace("[", "(")) for pattern in patterns)
    ]


def commit_of(checkout: Path) -> str | None:
    """None where it is no clone."""
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], check=False, capture_output=True, text=True
    )
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
