"""The provenance of one conversation as text, or as one self-contained HTML page with its timeline."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""As `service.store.audit.read_conversation` gives it."""

SHORT = 12


def text(conversation: str, found: Found) -> str:
    lines = [f"{conversation} of tenant {tenant(found)}: {verdict(found)}", *ancestry(found), ""]
    for turn in story(found):
        lines.append(f"turn {turn['turn_number']}  {turn['turn_id']}  {turn['state']}  {turn['started_at']}")
        lines.extend(f"  {step['at']}  {step['what']}" for step in turn["steps"])
    return "\n".join(lines) + "\n"


def html(conversation: str, found: Found) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files("stack") / "conversation_report.html.j2").read_text("utf-8"))
    return template.render(
        conversation=conversation,
        tenant=tenant(found),
        ancestry=ancestry(found),
        verdict=verdict(found),
        good=not findings(found),
        turns=story(found),
        revisions=found["revisions"],
    )


def tenant(found: Found) -> str:
    return str([*found["turns"], *found["forks"]][0]["tenant_id"])


def ancestry(found: Found) -> list[str]:
    """Where its history comes from, and what was made of it."""
    origin = [
        f"forked at {row['forked_at']} after {row['after_turn_id']}, version {row['parent_version']} of "
        + ", a fork of ".join(row["ancestors"])
        for row in found["forks"]
    ]
    forks = [
        f"forked into {row['conversation_id']} at {row['forked_at']}, after {row['after_turn_id']}"
        for row in found["forked_into"]
    ]
    return origin + forks


def findings(found: Found) -> list[str]:
    """What an auditor must look into; empty where all is as it should be."""
    diverging = [
        f"{row['turn_id']}: {row['first_divergence']}"
        for row in found["turn_provenance"]
        if row["first_divergence"] is not None
    ]
    broken = [f"event {row['stream_version']} breaks the chain" for row in found["chain_breaks"]]
    other = [
        f"it was forked from a history of {row['parent_id']} that is not there any more"
        for row in found["forks"]
        if not row["parent_intact"]
    ]
    return diverging + broken + other


def verdict(found: Found) -> str:
    if wrong := findings(found):
        return f"{len(wrong)} to look into: " + "; ".join(wrong)
    answers = len(found["turn_provenance"])
    return f"{answers} answer{'' if answers == 1 else 's'}, no divergence of the four parties, the chain is whole"


def story(found: Found) -> list[dict[str, Any]]:
    """Each turn with its steps in the order of the log."""
    names = {row["revision"]: row["label"] or short(row["revision"]) for row in found["revisions"]}
    return [
        dict(turn)
        | {
            "name": names.get(turn["revision"], short(turn["revision"])),
            "steps": sorted(_steps(found, turn["turn_id"], names), key=_order),
        }
        for turn in found["turns"]
    ]


def _steps(found: Found, turn: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []

    def add(row: Mapping[str, Any], at: str, kind: str, what: str) -> None:
        steps.append({"position": row["position"], "at": row[at], "kind": kind, "what": what})

    for row in _of(found["decisions"], turn):
        where = f"attempt {row['attempt']} on {row['engine']} ({names.get(row['revision'], row['revision'])})"
        add(row, "decided_at", "plan", f"{where}: {row['plan']}, because {row['reason']}; policy "
            f"{row['policy']} set by {row['policy_set_by']}")  # fmt: skip
    for row in _of(found["refusals"], turn):
        why = ", ".join(row["differing"]) or row["detail"]
        add(row, "refused_at", "refused", f"{row['engine']} refused {short(row['artifact_id'])}: "
            f"{row['reason']} ({why})")  # fmt: skip
    for row in _of(found["rebuild_cost"], turn):
        add(row, "rebuilt_at", "rebuilt", f"{row['tokens']} tokens rebuilt as {short(row['artifact_id'])} "
            f"on {row['engine']} in {row['turn_waited_seconds']} s")  # fmt: skip
    for row in _of(found["attempts"], turn):
        if row["outcome"] == "failed":
            add(row, "ended_at", "failed", f"attempt {row['attempt']} failed: {row['failure']}")
    for row in _of(found["turn_provenance"], turn):
        source = f"KV {row['kv_source']}" + (
            f" ({short(row['artifact_id'])} of {row['prefill_engine']}, {row['tokens_loaded']} tokens)"
            if row["artifact_id"]
            else ""
        )
        add(row, "completed_at", "answered", f"{row['output_tokens']} tokens from {row['decode_engine']} on "
            f"{names.get(row['decode_revision'], row['decode_revision'])}, {source}; "
            f"{row['first_divergence'] or 'all four parties agree'}")  # fmt: skip
    return steps


def _order(step: Mapping[str, Any]) -> tuple[str, bool, int]:
    """A failed attempt is told by its pin's row, so only its time puts it after what was refused before."""
    return step["at"], step["kind"] == "failed", step["position"]


def _of(rows: Sequence[Mapping[str, Any]], turn: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["turn_id"] == turn]


def short(name: str | None) -> str:
    """Told apart, not copied."""
    return "-" if name is None else name if len(name) <= SHORT + 4 else f"{name[:SHORT]}\u2026"
