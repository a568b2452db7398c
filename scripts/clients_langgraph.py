"""An agent of LangGraph talks until its thread lies in checkpoints, and leaves as the quickstart says; in the clients' environment.

Started by tests/clients/test_langgraph.py. Args: the service's URL, its keys, and the code of the quickstart. Prints a line for
`everturn import` for each API.
"""

import json
import sys
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import create_react_agent

THREADS = (("responses", True, "ada", "forecaster"), ("chat", False, None, None))
"""Over Responses, or over chat completions, where the service knows no names."""


@tool
def get_weather(city: str) -> str:
    """Says what the weather is in a city."""
    return f"sunny in {city}"


def main(url: str, keys: Path, code: str) -> None:
    key = json.loads(keys.read_text())["tenant_key"]
    for thread, responses, person, agent in THREADS:
        model = ChatOpenAI(
            model="production",
            base_url=url,
            api_key=key,
            temperature=0,
            max_tokens=48,
            use_responses_api=responses,
        )
        checkpoints = InMemorySaver()
        said = HumanMessage("Weather?", name=person)
        graph_of(model, checkpoints, agent).invoke(
            {"messages": [said]}, {"configurable": {"thread_id": thread}, "recursion_limit": 6}
        )
        names = {
            "graph": graph_of(model, checkpoints, agent)
        }  # another process, as far as the thread can tell
        exec(code, names)  # noqa: S102 the quickstart's
        print(names["transcript"](thread))


def graph_of(model: ChatOpenAI, checkpoints: InMemorySaver, agent: str | None) -> CompiledStateGraph:
    return create_react_agent(model, [get_weather], checkpointer=checkpoints, name=agent)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).read_text())
