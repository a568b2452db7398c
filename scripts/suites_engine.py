"""A simulated engine that answers what the suites ask for: a model of 135 million parameters neither calls tools nor knows its planets.

It reads its prompt as a model would, so that a turn which lost its history, its tools or their outputs is answered wrongly.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from service.domain.canary import TOKENS
from service.domain.evidence import TOLD_KEY
from service.domain.revision import Descriptor
from tests.engines.simulated import SimulatedEngine, text_of
from tests.engines.simulated_text import ASSISTANT, CALL, STOP, SYSTEM, TOOL, USER, called, letters

ALIAS = "suites-scripted"
HEARTBEAT_S = 2.0
MARKS = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant", TOOL: "tool"}
FACTS = {
    "humans live on": "It is Earth.",
    "rings around it": "It is Saturn.",
    "the capital of France": "It is Paris.",
    "largest countries by area": "They are Russia, Canada and China.",
    "Count from 1 to 10": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
}
OF_THE_TOWER = {"When was it built": "It was built in 1889.", "How tall is it": "It is 330 meters tall."}
"""What is known where it was said before that it is the Eiffel Tower."""
NAMED = {"capital": "Paris"}
"""Values of properties of forms."""
NOTHING = "I have nothing to say to that."


class ScriptedEngine(SimulatedEngine):
    def _answer(self, own: Descriptor, prompt: Sequence[int], states: Sequence[bytes]) -> list[int]:
        del own, states
        # Not the last: others may have come before the first word of this one is asked for.
        body = next(one for one in reversed(self.requests) if one["token_ids"] == list(prompt))
        held = body["sampling_params"].get("structured_outputs")
        form = json.loads(held["json"]) if held else {}
        if isinstance(form, dict) and "json_schema" in form:
            text = json.dumps(instance_of(form["json_schema"]["schema"]))
        else:
            text = reply(said_in(prompt), body.get(TOLD_KEY, {}))
        return [*letters(text), STOP]


def said_in(prompt: Sequence[int]) -> list[tuple[str, str]]:
    """Who said what, the empty answer that is to be written left out."""
    turns: list[tuple[str, str]] = []
    for token in prompt:
        if token in MARKS:
            turns.append((MARKS[token], ""))
        elif token != STOP:
            who, text = turns[-1]
            turns[-1] = who, text + text_of(token)
    return turns[:-1]


def instance_of(schema: Mapping[str, Any]) -> object:
    match schema["type"]:
        case "object":
            return {name: NAMED.get(name) or instance_of(one) for name, one in schema["properties"].items()}
        case "array":
            return [instance_of(schema["items"])]
        case kind:
            return {"string": "text", "integer": 30, "number": 999.5, "boolean": True}[kind]


def reply(said: Sequence[tuple[str, str]], wanted: Mapping[str, Any]) -> str:
    """Args: wanted: as a chat completion has it; of several calls only the first is written where one is wanted."""
    who, last = said[-1]
    if who == "tool":
        asked = CALL.findall(" ".join(_written(said, "assistant")))
        return f"I asked {', '.join(asked)}, and was told: {last}"
    if calls := list(_calls(last, wanted.get("tools", ()))):
        return "".join(calls if wanted.get("parallel_tool_calls", True) else calls[:1])
    return _words(last, _written(said, "assistant"), " ".join(_written(said, "user")))


def _words(asked: str, answered: Sequence[str], told: str) -> str:
    for question, fact in (FACTS | (OF_THE_TOWER if "Eiffel Tower" in told else {})).items():
        if question in asked:
            return fact
    if answered and "all caps" in asked:
        return answered[-1].upper()
    if answered and "your previous response" in asked:
        return f"I said: {answered[-1]}"
    if "do I like to eat" in asked and (liked := re.search(r"I like to eat (\w+)", told)):
        return f"You like {liked[1]}."
    return NOTHING


def _calls(asked: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = {tool["function"]["name"] for tool in tools}
    places = re.findall(r"San Francisco|Los Angeles|Paris|London", asked)
    timed = "get_time" in names and "time" in asked
    if "get_weather" in names and "weather" in asked:
        for place in places[:1] if timed else places:
            yield called("get_weather", json.dumps({"location": place}))
    if timed:
        yield called("get_time", json.dumps({"location": places[-1]}))


def _written(said: Sequence[tuple[str, str]], by: str) -> list[str]:
    return [text for who, text in said if who == by]


@contextmanager
def serving(admin: httpx.Client) -> Iterator[str]:
    """Registered, and under an alias of its own, until it is left; yields the alias."""
    with ScriptedEngine("suites", {}) as engine:
        # `make up` lets no engine in without an answer to the canary: any, of the first of its revision.
        canary = {"prompt": [0], "answer": [0] * TOKENS, "compared": TOKENS}
        body = {"boot": engine.boot, "address": engine.address, "role": "both", "canary": canary}
        _told(admin.post("/admin/engines", json=body | {"descriptor": engine.descriptor.to_json()}))
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(admin, engine.boot, over), daemon=True)
        beating.start()
        try:
            _told(
                admin.put(f"/admin/aliases/{ALIAS}", json={"revision": engine.revision, "by": "make suites"})
            )
            yield ALIAS
        finally:
            over.set()
            beating.join()
            _told(admin.delete(f"/admin/engines/{engine.boot}", params={"force": "true"}))


def _beat(admin: httpx.Client, boot: str, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_S):
        _told(admin.post(f"/admin/engines/{boot}/heartbeat"))


def _told(answer: httpx.Response) -> None:
    if answer.is_error:
        raise RuntimeError(
            f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
        )
