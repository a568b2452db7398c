"""Writes requirements.txt and requirements-dev.txt, and those of clients of others: what pip resolves, versions only."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LEFT_OUT = {
    "torchaudio": "only for speech models, and it would pull another torch",
    "torchcodec": "only for video models, and it would pull another torch",
    "torchvision": "only for image models, and it would pull another torch",
    "triton": "GPU kernels; 1 GB that the CPU build never imports",
}
"""What vLLM names but a text model on a CPU never imports; the reason why setup installs with --no-deps."""

ONLY_ON_OLDER_PYTHONS = ['async-timeout==5.0.1 ; python_full_version < "3.11.3"']
"""What redis and valkey need on Debian 12's own Python 3.11.2, and no resolution on a newer one shows."""

CLIENTS = {
    "clients": ("openai==3.57.0", "openai-agents==0.24.0", "langchain-openai==1.7.4", "langgraph==1.2.24"),
    # Another version of the official client, and for its Responses API a package that it does not name.
    "clients_litellm": ("litellm==1.106.12", "mcp==2.3.0"),
}
"""Of environments of their own, by the name of each (scripts/clients.sh)."""


def resolve(*packages: str) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, "--report", report.name, *packages], check=True)
        installs = json.loads(Path(report.name).read_text())["install"]
    found = {item["metadata"]["name"].lower(): item["metadata"]["version"].split("+")[0] for item in installs}
    return {name: version for name, version in found.items() if name not in {*LEFT_OUT, "everturn"}}


def pins(versions: dict[str, str]) -> list[str]:
    return [f"{name}=={versions[name]}" for name in sorted(versions)]


def write(path: Path, lines: list[str]) -> None:
    header = "# Made by `make lock` (scripts/lock.py). Installed with --no-deps: this is the whole set."
    path.write_text("\n".join([header, *lines]) + "\n")


def main() -> None:
    run_time = resolve(f"{ROOT}[engine-cpu,embedded,s3]")
    everything = resolve(f"{ROOT}[engine-cpu,embedded,s3,dev]")
    write(ROOT / "requirements.txt", [*pins({n: everything[n] for n in run_time}), *ONLY_ON_OLDER_PYTHONS])
    write(ROOT / "requirements-dev.txt", pins({n: v for n, v in everything.items() if n not in run_time}))
    for name, packages in CLIENTS.items():
        write(ROOT / "scripts" / f"{name}_requirements.txt", pins(resolve(*packages)))


if __name__ == "__main__":
    main()
