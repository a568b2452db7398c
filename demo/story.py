"""One conversation through one upgrade, told through the REST API as a client would, every claim checked."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from demo.auditor import Auditor, table
from demo.checkpoints import Checkpoints
from demo.claims import Claims
from demo.control import unguarded_engine
from demo.conversation import SYSTEM, TURNS
from demo.reference import CANDIDATES, Answer, Reference, by_token, furthest
from service.domain.evidence import KvRequest
from stack.cores import usable
from stack.deployment import Deployment, EngineSpec
from stack.errors import StackError
from stack.ports import find_free_port

ALIAS = "production"
MAX_TOKENS = 48
LOGPROB_TOLERANCE = 1e-4
PUBLISH_WAIT_S = 30.0
# So that every reuse in the story comes from the store, and every cold prefill is cold.
NO_LOCAL_CACHE = ["--no-enable-prefix-caching"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    cross_revision_hits: int
    refusals: int
    differing_fields: list[str]
    control_differs: bool
    equals_cold_prefill: bool
    rebuilt_tokens: int


class Story:
    def __init__(self, deployment: Deployment, checkpoints: Checkpoints, claims: Claims) -> None:
        self._deployment = deployment
        self._checkpoints = checkpoints
        self._claims = claims
        self._auditor = Auditor(deployment.database_dsn())
        self._mounted = deployment.data / "models" / "chat"
        """Where both versions are served from, as every pod of a fleet mounts /mnt/models."""
        self._api = httpx.Client(
            base_url=f"{deployment.url}/v1",
            headers={"authorization": f"Bearer {deployment.keys.tenant_key}"},
            timeout=300,
            trust_env=False,
        )

    def tell(self) -> Outcome:
        v12 = self._serve("v12", self._checkpoints.v12, core=usable()[0])
        self._point_alias(v12)
        conversation = self._open_conversation()
        second = self._two_turns(conversation)
        published = self._published(conversation, count=2)
        messages = self._messages(conversation)
        control, cold_control = self._control(v12, second, messages, published)
        v13 = self._serve("v13", self._checkpoints.v13, core=usable()[-1])
        self._same_but_for_the_weights(v12, v13)
        self._point_alias(v13)
        third = self._third_turn(conversation, v13)
        equal = self._equals_cold(v13, third, cold_control)
        return self._audit(conversation, third, control_differs=control, equal=equal)

    def _serve(self, name: str, checkpoint: Path, *, core: int) -> dict[str, Any]:
        self._chapter(f"An engine comes up on {self._mounted} as 'chat': the bytes there are {name}'s")
        self._mounted.parent.mkdir(exist_ok=True)
        self._mounted.unlink(missing_ok=True)
        self._mounted.symlink_to(checkpoint.absolute())
        port = find_free_port()
        spec = EngineSpec(name=name, model=self._mounted, port=port, cores=str(core), options=NO_LOCAL_CACHE)
        self._deployment.start_engine(spec)
        engine: dict[str, Any] = next(e for e in self._engines() if e["address"].endswith(f":{port}"))
        self._say(f"it measured itself: {engine['revision'][:20]}…  (boot {engine['boot'][:13]})")
        return engine

    def _point_alias(self, engine: dict[str, Any]) -> None:
        moved = self._deployment.admin(
            "PUT", f"/aliases/{ALIAS}", {"revision": engine["revision"], "by": "make demo"}
        )
        previous = str(moved["previous"] or "nothing")
        self._say(f"alias '{ALIAS}': {previous[:20]} → {engine['revision'][:20]}")

    def _open_conversation(self) -> str:
        self._chapter("A client talks: two turns on v12")
        item = {"type": "message", "role": "system", "content": SYSTEM}
        conversation = self._post("/conversations", {"items": [item], "metadata": {"about": "demo"}})
        return str(conversation["id"])

    def _two_turns(self, conversation: str) -> dict[str, Any]:
        self._turn(conversation, TURNS[0])
        self._published(conversation, count=1)
        second = self._turn(conversation, TURNS[1])
        self._claims.check(
            "turn 2 reused the KV that turn 1 left in the store",
            holds=second["kv"]["source"] == "reused" and second["kv"]["tokens_loaded"] > 0,
            detail=f"{second['kv']['tokens_loaded']} of {second['usage']['input_tokens']} tokens",
        )
        return second

    def _published(self, conversation: str, *, count: int) -> str:
        """The handle of the newest artifact, once there are `count`: a turn's answer does not wait for its KV."""
        deadline = time.monotonic() + PUBLISH_WAIT_S
        with self._step(f"the KV of turn {count} is stored"):
            while len(found := self._artifacts(conversation)) < count:
                if time.monotonic() > deadline:
                    raise StackError(f"no KV of turn {count} was published within {PUBLISH_WAIT_S:.0f} s")
                time.sleep(0.05)
        newest = found[-1]
        self._say(f"its KV is in the store: {newest['artifact'][:11]}…, {newest['tokens']} tokens")
        return str(newest["artifact"])

    def _control(
        self, v12: dict[str, Any], second: dict[str, Any], messages: list[dict[str, str]], offer: str
    ) -> tuple[bool, Answer]:
        self._chapter("Control: v13 at the same path, reading the stored KV without our guard")
        window = (*self._auditor.prompt(second["id"]), *self._auditor.output(second["id"]))
        delta = Reference(address=v12["address"]).render(
            [*messages, {"role": "user", "content": TURNS[2]}], covered=len(messages), last_token=window[-1]
        )
        prompt = (*window, *delta)
        self._mounted.unlink()
        self._mounted.symlink_to(self._checkpoints.v13.absolute())
        kv = KvRequest(attempt="control", tenant="default", offer=offer)
        with (
            unguarded_engine(self._deployment, self._mounted, NO_LOCAL_CACHE) as engine,
            self._step("v13 answers, on v12's KV and from scratch"),
        ):
            stale = engine.generate(prompt, max_tokens=MAX_TOKENS, kv=kv)
            cold = engine.generate(prompt, max_tokens=MAX_TOKENS)
        self._say(f"v13 on v12's KV:  {_quoted(stale.text)}")
        self._say(f"v13 from scratch: {_quoted(cold.text)}")
        differs = self._claims.check(
            "no error, and another answer: the fault is real", holds=stale.tokens != cold.tokens
        )
        return differs, cold

    def _same_but_for_the_weights(self, v12: dict[str, Any], v13: dict[str, Any]) -> None:
        one, other = (
            self._deployment.admin("GET", f"/revisions/{e['revision']}")["descriptor"] for e in (v12, v13)
        )
        if not isinstance(one, dict) or not isinstance(other, dict):
            raise TypeError("GET /admin/revisions/{digest} must answer with a descriptor")
        names = [
            f"{part}.{field}" for part in one for field in one[part] if one[part][field] != other[part][field]
        ]
        self._claims.check(
            "v12 and v13 differ in nothing but bytes of weights",
            holds=names == ["kv.weights"],
            detail=", ".join(names),
        )

    def _third_turn(self, conversation: str, v13: dict[str, Any]) -> dict[str, Any]:
        self._chapter("Everturn: the next turn of the same conversation, after the upgrade")
        third = self._turn(conversation, TURNS[2])
        kv = third["kv"]
        refusal = kv["refusal"] or {"reason": "none", "differing_fields": []}
        self._say(f"plan: {kv['plan']}; {kv['reason']}")
        check = self._claims.check
        check("the turn ran on v13", holds=third["revision"] == v13["revision"] and third["revision_changed"])
        check(
            "the engine refused the old handle by itself",
            holds=refusal["reason"] == "revision_mismatch" and refusal["differing_fields"] == ["weights"],
            detail=f"{refusal['reason']}: {', '.join(refusal['differing_fields'])}",
        )
        check(
            "a Celery worker rebuilt the KV on v13, and the turn decoded from it",
            holds=kv["source"] == "rebuilt" and kv["tokens_loaded"] > 0,
            detail=f"{kv['tokens_replayed']} tokens rebuilt, {kv['tokens_loaded']} loaded",
        )
        return third

    def _equals_cold(self, v13: dict[str, Any], third: dict[str, Any], control_cold: Answer) -> bool:
        self._chapter("The answer against a cold prefill of the same tokens on v13")
        engine = Reference(address=v13["address"])
        prompt, output = self._auditor.prompt(third["id"]), self._auditor.output(third["id"])
        with self._step("v13 answers from scratch"):
            cold = engine.generate(prompt, max_tokens=MAX_TOKENS)
        first = third["output"][0]["content"][0]["logprobs"][0]
        far = furthest(cold.first_logprobs, by_token(first["top_logprobs"]))
        check = self._claims.check
        tokens = check("equal token for token", holds=output == cold.tokens, detail=f"{len(output)} tokens")
        check("equal to the cold answer of the other v13 process", holds=output == control_cold.tokens)
        near = check(
            "its first token's log-probabilities within 1e-4 of the cold ones",
            holds=far < LOGPROB_TOLERANCE,
            detail=f"furthest {far:.1e}",
        )
        return tokens and near

    def _audit(
        self, conversation: str, third: dict[str, Any], *, control_differs: bool, equal: bool
    ) -> Outcome:
        self._chapter("What the record says (role everturn_auditor, views of schema audit)")
        provenance, refusals = self._auditor.provenance(conversation), self._auditor.refusals(conversation)
        print(
            "   audit.turn_provenance",
            table(provenance),
            "   audit.refusals",
            table(refusals),
            sep="\n",
            flush=True,
        )
        hits = self._auditor.cross_revision_hits()
        check = self._claims.check
        check("cross-revision hits: 0", holds=hits == 0)
        check(
            "no turn's parties part company", holds=all(row["first_divergence"] is None for row in provenance)
        )
        check("every turn is there", holds=len(provenance) == len(TURNS))
        check("the refusal is there", holds=[r["turn_id"] for r in refusals] == [third["id"]])
        return Outcome(
            cross_revision_hits=hits,
            refusals=len(refusals),
            differing_fields=sorted({name for row in refusals for name in row["differing"]}),
            control_differs=control_differs,
            equals_cold_prefill=equal,
            rebuilt_tokens=third["kv"]["tokens_replayed"],
        )

    def _turn(self, conversation: str, text: str) -> dict[str, Any]:
        self._say(f"user: {text}")
        body = {
            "model": ALIAS,
            "conversation": conversation,
            "input": text,
            "temperature": 0,
            "max_output_tokens": MAX_TOKENS,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": CANDIDATES,
        }
        with self._step("chat answers"):
            response = self._post("/responses", body)
        answer = response["output"][0]["content"][0]["text"] if response["output"] else response["error"]
        self._say(f"chat: {_quoted(answer)}")
        kv = response["kv"]
        self._say(
            f"      {response['revision'][:20]}…, KV {kv['source']}: {kv['tokens_loaded']} tokens loaded"
        )
        return response

    def _artifacts(self, conversation: str) -> list[dict[str, Any]]:
        artifacts = self._deployment.admin("GET", f"/conversations/{conversation}/artifacts")["data"]
        if not isinstance(artifacts, list):
            raise TypeError("GET /admin/conversations/{id}/artifacts must answer with a list")
        return artifacts

    def _messages(self, conversation: str) -> list[dict[str, str]]:
        items = self._get(f"/conversations/{conversation}/items?order=asc&limit=100")["data"]
        return [{"role": item["role"], "content": item["content"][0]["text"]} for item in items]

    def _engines(self) -> list[dict[str, Any]]:
        engines = self._deployment.admin("GET", "/engines")["data"]
        if not isinstance(engines, list):
            raise TypeError("GET /admin/engines must answer with a list")
        return engines

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return _answer(self._api.post(path, json=body))

    def _get(self, path: str) -> dict[str, Any]:
        return _answer(self._api.get(path))

    def _step(self, what: str) -> AbstractContextManager[None]:
        return self._deployment.progress.step(f"   {what}")

    def _chapter(self, title: str) -> None:
        print(f"\n■ {title}", flush=True)

    def _say(self, text: str) -> None:
        print(f"   {text}", flush=True)


def _answer(response: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = response.json()
    if response.is_error:
        raise StackError(f"{response.request.method} {response.request.url} answered {response.text}")
    return document


def _quoted(text: str) -> str:
    return "“" + " ".join(text.split()) + "”"
