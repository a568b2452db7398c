"""What the story says is true, checked as it is told; one false claim makes the whole run fail."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Claims:
    failed: list[str] = field(default_factory=list)

    def check(self, claim: str, *, holds: bool, detail: str = "") -> bool:
        print(f"   {'✓' if holds else '✗'} {claim}{f'  ({detail})' if detail else ''}", flush=True)
        if not holds:
            self.failed.append(claim)
        return holds
