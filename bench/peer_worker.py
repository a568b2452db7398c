"""Runs in the peers' own environment, started by store_peers.py: a line of JSON with work in, a line of JSON with figures out."""

import json
import statistics
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from psycopg.rows import dict_row

Work = list[dict[str, Any]]
Write = Callable[[Work, list[float]], None]


class Whole(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def main() -> None:
    dsn = sys.argv[1]
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    store = PostgresDatastore(
        **{name: str(given[name]) for name in ("dbname", "host", "port", "user", "password")}, pool_size=16
    )
    recorder = PostgresApplicationRecorder(store)
    recorder.create_table()
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        PostgresSaver(connection).setup()
    ways: dict[str, Write] = {
        "eventsourcing": lambda work, took: write_events(recorder, work, took),
        "langgraph": lambda work, took: write_graph(dsn, Whole, work, took),
        "langgraph_delta": lambda work, took: write_graph(dsn, Delta, work, took),
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(ways[asked["way"]], asked["work"])), flush=True)


def run(write: Write, work: list[Work]) -> dict[str, float]:
    took: list[float] = []
    threads = [threading.Thread(target=write, args=(part, took)) for part in work]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "rate": len(took) / (time.perf_counter() - started),
        "p50": statistics.median(took),
        "last": took[-1],
    }


def write_events(recorder: PostgresApplicationRecorder, turns: Work, took: list[float]) -> None:
    """The same events: all that a row of ours holds of one is its state, in bytes."""
    originator, version = uuid4(), 0
    for turn in turns:
        parts = [
            [(row["type"], state(row)) for row in part] for part in (turn["accepted"], turn["completed"])
        ]
        started = time.perf_counter()
        for part in parts:
            stored = []
            for topic, data in part:
                version += 1
                stored.append(
                    StoredEvent(originator_id=originator, originator_version=version, topic=topic, state=data)
                )
            recorder.insert_events(stored)
        took.append(time.perf_counter() - started)


def state(row: dict[str, str]) -> bytes:
    return row["payload"].encode() + b64decode(row["content"]) + b64decode(row["tokens"])


def write_graph(dsn: str, schema: type, turns: Work, took: list[float]) -> None:
    """A turn is one run of the smallest graph: a question goes in, and the answer is one node's."""
    answers = {turn["question"]: turn["answer"] for turn in turns}

    def answer(known: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [AIMessage(content=answers[known["messages"][-1].content])]}

    graph = StateGraph(schema)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0, row_factory=dict_row) as connection:
        ready = graph.compile(checkpointer=PostgresSaver(connection))
        thread = {"configurable": {"thread_id": uuid4().hex}}
        for turn in turns:
            started = time.perf_counter()
            ready.invoke({"messages": [HumanMessage(content=turn["question"])]}, thread)
            took.append(time.perf_counter() - started)


if __name__ == "__main__":
    main()
