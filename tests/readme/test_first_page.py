"""What the README says of numbers and of the machine is what the other files say."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def only(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def test_there_are_as_many_questions_to_the_record_as_it_says() -> None:
    questions = re.findall(r"^### \d+\. ", (ROOT / "docs/audit.md").read_text(), re.MULTILINE)
    assert int(only(r"docs/audit\.md\) asks (\d+) questions", README)) == len(questions)


def test_the_faults_take_as_long_on_every_page() -> None:
    pages = {
        "README.md": r"^make faults .* some (\d+) minutes",
        "Makefile": r"^faults: .* some (\d+) minutes",
        "docs/faults.md": r"^make faults .* some (\d+) minutes",
    }
    assert len({only(pattern, (ROOT / page).read_text()) for page, pattern in pages.items()}) == 1


def test_what_it_has_installed_first_is_what_setup_asks_for() -> None:
    setup = (ROOT / "scripts/setup.sh").read_text()
    packages = dict(re.findall(r"([\w+]+(?:\.so\.\d+)?)=([a-z][\w+-]*)[ )]", setup))
    named = set(only(r"`apt-get install ([^`]*)`", README).split())
    part_of_debian = {packages[name] for name in ("libz.so.1", "libstdc++.so.6", "libgcc_s.so.1")}
    assert named == {"make", "python3", *packages.values()} - part_of_debian
