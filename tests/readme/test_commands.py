"""Every command that the README and docs/ show is one that the command line, or the Makefile, takes."""

import argparse
import re
import shlex
from pathlib import Path
from typing import NoReturn

import pytest

from stack.cli import main

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
SPELT = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(?:python -m stack|everturn) ")
"""How a command of ours begins."""


class ParsedError(Exception):
    """It would have been carried out."""


def typed() -> list[tuple[str, str]]:
    """Each command of a block of shell, and of a table's cell, with the page that shows it."""
    found = []
    for name, text in PAGES.items():
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        lines = [
            line
            for kind, block in blocks
            if kind in ("", "sh")
            for line in block.replace("\\\n", " ").splitlines()
        ]
        lines += [
            code
            for row in re.findall(r"^\|.*$", text, re.MULTILINE)
            for code in re.findall(r"`([^`]+)`", row)
        ]
        found += [(name, line) for line in lines if SPELT.match(line) and not line.endswith(" …")]
    return found


def words(line: str) -> list[str]:
    given = shlex.split(SPELT.sub("", line), comments=True)
    return given[: given.index(">")] if ">" in given else given


def test_there_are_commands_to_check() -> None:
    assert len({line for _, line in typed()}) >= 30
    assert {name for name, _ in typed()} >= {
        "README.md",
        "event-store.md",
        "rollout-runbook.md",
        "identity-and-guard.md",
    }


@pytest.mark.parametrize(("page", "line"), typed())
def test_a_command_that_is_shown_is_taken(monkeypatch: pytest.MonkeyPatch, page: str, line: str) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, arguments: list[str]) -> NoReturn:
        raise ParsedError(parse(parser, arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    with pytest.raises(ParsedError):
        main(words(line))


def test_every_target_of_make_that_is_named_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target for text in PAGES.values() for target in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)?)[`\s]", text)
    }
    commands = {target for target in named if f"`make {target}`" in "".join(PAGES.values())}
    assert commands <= targets
    assert {"demo", "up", "down", "test", "check", "bench-kv", "bench-store"} <= commands | targets


def test_every_script_that_is_named_is_there() -> None:
    for name, text in PAGES.items():
        for path in re.findall(r"(?<![\w/.])scripts/[\w/.-]*\w", text):
            assert (ROOT / path).exists(), f"{name} names {path}"


def test_the_clients_that_the_pages_name_are_tried_by_the_command_that_they_name() -> None:
    tried = "".join(path.read_text() for path in (ROOT / "scripts").glob("client*.py"))
    assert "scripts/clients.sh" in (ROOT / "Makefile").read_text()
    assert "scripts/clients.sh --calls ALIAS" in PAGES["quickstart.md"]
    assert '"--calls"' in tried
    for client in ("openai-agents", "LangChain", "LiteLLM"):
        assert all(
            client in PAGES[page] for page in ("README.md", "quickstart.md", "openai-compatibility.md")
        )
        assert client in tried


def test_every_page_that_is_linked_is_there() -> None:
    for name, text in PAGES.items():
        folder = ROOT if name == "README.md" else ROOT / "docs"
        for target, _, place in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text)):
            if target.startswith("http"):
                continue
            page = folder / target if target else folder / name
            assert page.exists(), f"{name} links {target}"
            if place:
                heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
                assert place in {anchor(head) for head in heads}, f"{name} links {target}#{place}"


def anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
