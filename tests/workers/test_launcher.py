"""The engine launcher: refuses bad input at once, serves only what was measured, and ends what it started."""

import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from service.domain.adapter import effective
from stack.ports import find_free_port
from tests.domain.descriptors import V12, V13
from tests.workers.fake_api import FakeApi, serving
from tests.workers.launched import ANSWER, REPOSITORY, Launched, gone, identity, until
from workers import named_memory
from workers.engine_probe import TIMEOUT_S

SLEEPING_ZYGOTE = Path(__file__).with_name("sleeping_engine.py")
ADAPTERS = {"legal": "a" * 64, "style": "b" * 64}
SHARED_BEFORE_S = 0.2
TERM, KILL, STOP, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def serve(launched: Launched, api: FakeApi, *more: str) -> None:
    launched.start(*more)
    until(lambda: len(api.known) == 1, "the engine never registered")


def beats(api: FakeApi) -> int:
    return sum(c.path.endswith("/heartbeat") for c in api.calls)


def told(api: FakeApi) -> list[str]:
    return [call.query for call in api.calls if call.path.endswith("/heartbeat")]


def test_a_measured_engine_is_registered_with_its_key(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    call = api.calls[0]
    (boot,) = api.known
    assert call.key == "Bearer engine-key"
    assert call.body == {
        "boot": boot,
        "address": f"http://127.0.0.1:{launched.port}",
        "role": "both",
        "descriptor": V12.to_json(),
        "canary": {"prompt": [1, 2, 3], "answer": ANSWER, "compared": 16},
    }


def test_the_engine_is_started_with_the_guard_in_it(launched: Launched, api: FakeApi) -> None:
    serve(launched, api, "--", "--dtype", "bfloat16")
    argv = launched.engine_argv()
    assert "workers.kv_connector.middleware.EverturnMiddleware" in argv
    assert '"kv_connector": "EverturnConnector"' in argv[argv.index("--kv-transfer-config") + 1]
    assert argv[-2:] == ["--dtype", "bfloat16"], "what follows -- comes last, and wins"


def test_heartbeats_come_three_times_a_lease(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    began, before = time.monotonic(), beats(api)
    until(lambda: beats(api) >= before + 6, "no heartbeats")
    assert 0.8 < time.monotonic() - began < 4.0


def test_a_heartbeat_tells_what_the_engine_itself_counts_as_unanswered(
    launched: Launched, api: FakeApi
) -> None:
    launched.behave(load=4)
    serve(launched, api)
    until(lambda: told(api)[-1:] == ["requests=4"], "it was never told")
    launched.behave(load=0)
    until(lambda: told(api)[-1:] == ["requests=0"], "that it has none was never told")


def test_an_engine_whose_weights_changed_in_place_ends_and_leaves(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    launched.behave(
        identity_status=503, identity={"error": {"type": "unmeasured", "message": "weights changed"}}
    )
    until(lambda: not api.known, "it never left")
    status, error = launched.end()
    assert status == 1
    assert "the engine is no longer what it is registered as: weights changed" in error


def test_an_unknown_boot_registers_again_under_the_same_id(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    (boot,) = api.known
    api.known.clear()
    until(lambda: bool(api.known), "the engine never came back")
    assert [c.body["boot"] for c in api.calls if c.path == "/admin/engines"] == [boot, boot]


def test_an_engine_outlives_an_api_that_is_away(launched: Launched, api: FakeApi) -> None:
    api.refuse = (503, "starting")
    launched.start()
    until(lambda: len(api.calls) >= 2, "it gave up")
    api.refuse = None
    until(lambda: beats(api) > 0, "it never registered")
    api.refuse = (503, "restarting")
    seen = len(api.calls)
    until(lambda: len(api.calls) > seen + 1, "it gave up")
    api.refuse = None
    before = beats(api)
    until(lambda: beats(api) > before + 2, "it never came back")
    launched.signal(TERM)
    status, said = launched.end()
    assert status == 0
    assert said.count("trying again") == 2, "once for each time away"


def test_a_key_that_is_refused_later_does_not_end_the_engine(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    api.refuse = (401, "no such key")
    seen = len(api.calls)
    until(lambda: len(api.calls) > seen + 1, "it gave up")
    (launched.folder / "key").write_text("new-key")
    api.refuse = None
    before = beats(api)
    until(lambda: beats(api) > before, "it never came back")
    assert api.calls[-1].key == "Bearer new-key"


def test_an_engine_waits_for_an_api_that_is_not_there_yet(launched: Launched) -> None:
    port = find_free_port()
    launched.api_url = f"http://127.0.0.1:{port}"
    launched.start()
    time.sleep(1.5)
    with serving(port) as late:
        until(lambda: bool(late.known), "it never registered")


def test_adapters_are_told_as_the_engine_measured_them_and_as_they_come_and_go(
    launched: Launched, api: FakeApi
) -> None:
    revisions = {name: effective(V12, digest).digest for name, digest in ADAPTERS.items()}

    def loaded(*names: str) -> dict[str, Any]:
        told = [{"model": n, "adapter": ADAPTERS[n], "revision": revisions[n]} for n in names]
        return identity() | {"adapters": told}

    launched.behave(identity=loaded("legal"))
    serve(launched, api)
    until(lambda: api.adapters == {"legal": revisions["legal"]}, "the adapter was never told")
    launched.behave(identity=loaded("legal", "style"))
    until(lambda: api.adapters == revisions, "the adapter loaded at run time was never told")
    launched.behave(identity=loaded("style"))
    until(lambda: list(api.adapters) == ["style"], "the adapter that was unloaded is still there")


def test_an_adapter_that_is_not_what_its_engine_claims_is_not_told(launched: Launched, api: FakeApi) -> None:
    told = {"model": "legal", "adapter": ADAPTERS["legal"], "revision": V13.digest}
    launched.behave(identity=identity() | {"adapters": [told]})
    launched.start()
    status, said = launched.end()
    assert status == 1
    assert f"claims {V13.digest} for adapter 'legal'" in said
    assert api.known == set()


def test_sigterm_drains_then_stops_the_engine_then_leaves(launched: Launched, api: FakeApi) -> None:
    launched.behave(load=1)
    serve(launched, api)
    launched.signal(TERM)
    until(
        lambda: api.calls[-1].path.endswith("/heartbeat") and "POST drain" in api.names(), "no beats in drain"
    )
    assert launched.journal()[-1][1] != "sigterm", "a request is still running"
    launched.behave(load=0)
    status, _ = launched.end()
    assert status == 0
    drained = next(c.at for c in api.calls if c.path.endswith("/drain"))
    stopped_at, what = launched.journal()[-1]
    assert what == "sigterm"
    assert api.calls[-1].method == "DELETE"
    assert drained < stopped_at < api.calls[-1].at
    assert gone(launched.engine_pid())


def test_a_draining_engine_never_registers_again(launched: Launched, api: FakeApi) -> None:
    launched.behave(load=1)
    serve(launched, api)
    launched.signal(TERM)
    until(lambda: "POST drain" in api.names(), "no drain")
    api.known.clear()
    until(lambda: api.calls[-1].path.endswith("/heartbeat"), "no heartbeat")
    launched.behave(load=0)
    assert launched.end()[0] == 0
    assert len([c for c in api.calls if c.path == "/admin/engines"]) == 1


def test_the_drain_has_an_end(launched: Launched, api: FakeApi) -> None:
    launched.behave(load=1)
    serve(launched, api, "--drain-timeout", "0.5")
    launched.signal(TERM)
    status, said = launched.end()
    assert (status, "still running" in said) == (0, True)


def test_a_second_signal_hurries(launched: Launched, api: FakeApi) -> None:
    launched.behave(load=1)
    serve(launched, api)
    launched.signal(TERM)
    until(lambda: "POST drain" in api.names(), "no drain")
    launched.signal(TERM)
    assert launched.end()[0] == 0


def test_a_dead_engine_leaves_the_fleet(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    os.kill(launched.engine_pid(), KILL)
    status, said = launched.end()
    assert status == 1
    assert "the engine ended" in said
    assert api.calls[-1].method == "DELETE"


@pytest.mark.parametrize(("load_s", "said"), [(0, "registered as"), (60, "loading the model")])
def test_memory_that_a_killed_engine_shared_by_name_is_given_back(
    launched: Launched, load_s: int, said: str
) -> None:
    own = named_memory.FOLDER / f"vllm_offload_{launched.port}.mmap"
    of_a_cache_server = named_memory.FOLDER / f"psm_{launched.port}"
    of_a_cache_server.write_bytes(bytes(mmap.PAGESIZE))
    time.sleep(SHARED_BEFORE_S)
    launched.behave(shared=[str(own), str(of_a_cache_server)], load_s=load_s)
    try:
        launched.start()
        launched.until_said(said)
        assert own.exists()
        os.kill(launched.engine_pid(), KILL)
        assert launched.end()[0] == 1
        assert not own.exists()
        assert of_a_cache_server.exists()
    finally:
        own.unlink(missing_ok=True)
        of_a_cache_server.unlink()


def test_an_engine_whose_core_died_is_ended(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    launched.behave(health=503)
    status, said = launched.end()
    assert (status, "the engine broke" in said) == (1, True)
    assert gone(launched.engine_pid())
    assert api.calls[-1].method == "DELETE"


def test_a_silent_engine_gets_no_heartbeats_until_it_answers(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    os.kill(launched.engine_pid(), STOP)
    time.sleep(TIMEOUT_S + 0.5)
    before = beats(api)
    time.sleep(TIMEOUT_S + 0.5)
    assert beats(api) == before
    os.kill(launched.engine_pid(), CONT)
    until(lambda: beats(api) > before, "it never came back")


def test_an_engine_that_dies_while_loading_says_its_last_words(launched: Launched, api: FakeApi) -> None:
    launched.behave(
        complaint="(EngineCore pid=9) ERROR 01-31 12:00:00 [core.py:1] ValueError: no room for KV"
    )
    launched.start()
    status, said = launched.end()
    assert status == 1
    line = said.splitlines()[-1]
    assert line.startswith(f"engine chat on port {launched.port}: ")
    assert "ValueError: no room for KV (log: " in line
    assert api.calls == []


def test_the_engine_does_not_outlive_a_killed_launcher(launched: Launched, api: FakeApi) -> None:
    serve(launched, api)
    launched.signal(KILL)
    until(lambda: launched.journal()[-1][1] == "sigterm", "the engine was left alone")


def test_an_engine_of_the_zygote_does_not_outlive_a_killed_launcher_either(
    launched: Launched, tmp_path: Path
) -> None:
    path = tmp_path / "z.sock"
    command = [sys.executable, str(SLEEPING_ZYGOTE), str(path)]
    environment = dict(os.environ) | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as zygote:
        assert zygote.stdout is not None
        assert zygote.stdout.readline() == b"ready\n"
        launched.start("--zygote", str(path))
        children = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children")
        until(lambda: bool(children.read_text()), "no engine was forked")
        launched.signal(KILL)
        until(lambda: not children.read_text(), "the engine was left alone")
        zygote.kill()


def test_an_expected_revision_is_registered_as_such(launched: Launched, api: FakeApi) -> None:
    serve(launched, api, "--expect", V12.digest)
    assert api.calls[0].body["expected_revision"] == V12.digest


def test_another_revision_than_expected_never_registers(launched: Launched, api: FakeApi) -> None:
    api.revisions[V13.digest] = V13.to_json()
    launched.start("--expect", V13.digest)
    status, said = launched.end()
    assert status == 3
    assert "differing fields: weights" in said.splitlines()[-1]
    assert api.names() == [f"GET {V13.digest}"]
    assert gone(launched.engine_pid())


def test_a_claim_that_is_not_the_digest_is_not_believed(launched: Launched, api: FakeApi) -> None:
    launched.behave(identity=identity(V12) | {"revision": V13.digest})
    launched.start("--expect", V13.digest)
    status, said = launched.end()
    assert (status, "measured" in said, api.calls) == (1, True, [])


def test_another_engine_on_the_port_is_not_taken_for_ours(launched: Launched, api: FakeApi) -> None:
    launched.behave(identity=identity() | {"boot": "boot_other"})
    launched.start()
    status, said = launched.end()
    assert (status, "another engine answers" in said, api.calls) == (1, True, [])


def test_an_engine_without_identity_says_why(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    launched.behave(identity_status=503, identity={"error": {"message": "pipeline parallel"}})
    launched.start("--start-timeout", "4")
    status, said = launched.end()
    assert (status, "pipeline parallel" in said) == (1, True)


@pytest.mark.parametrize(
    ("status", "message"), [(401, "no such key"), (409, "differs"), (400, "bad address")]
)
def test_a_refused_first_registration_ends_the_launcher(
    launched: Launched, api: FakeApi, status: int, message: str
) -> None:
    api.refuse = (status, message)
    launched.start()
    code, said = launched.end()
    assert (code, message in said.splitlines()[-1]) == (2, True)
    assert gone(launched.engine_pid())


def test_progress_is_shown_while_a_model_loads(launched: Launched, api: FakeApi) -> None:
    launched.behave(load_s=3)
    serve(launched, api)
    launched.signal(TERM)
    assert "loading the model ... 2 s" in launched.end()[1]


def test_sigterm_while_loading_stops_at_once(launched: Launched, api: FakeApi) -> None:
    launched.behave(load_s=60)
    launched.start()
    until(lambda: len(launched.journal()) >= 2, "no engine")
    launched.signal(TERM)
    assert launched.end()[0] == 0
    assert gone(launched.engine_pid())


def refused(launched: Launched, *more: str) -> str:
    launched.start(*more)
    status, said = launched.end()
    assert status == 2
    assert launched.journal() == [], "nothing was started"
    return said.splitlines()[-1]


def test_a_missing_model_is_refused(launched: Launched) -> None:
    shutil.rmtree(launched.model)
    assert "model' is not a folder on this machine" in refused(launched)


def test_a_model_without_safetensors_is_refused(launched: Launched) -> None:
    (launched.model / "model.safetensors").unlink()
    assert "has no .safetensors file" in refused(launched)


def test_a_model_that_was_not_downloaded_to_the_end_is_refused(launched: Launched) -> None:
    shard = launched.model / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "is not a whole safetensors file" in refused(launched)


def test_a_port_in_use_is_refused(launched: Launched) -> None:
    with socket.create_server(("127.0.0.1", launched.port)):
        assert f"--port {launched.port} on 127.0.0.1 is in use" in refused(launched)


def test_a_missing_key_file_is_refused(launched: Launched) -> None:
    (launched.folder / "key").unlink()
    assert "--key-file" in refused(launched)


@pytest.mark.parametrize("given", ["latest", "v13", "rev_12"])
def test_a_floating_expectation_is_refused(launched: Launched, given: str) -> None:
    assert "'--expect' must be a revision digest" in refused(launched, "--expect", given)


def test_a_store_that_cannot_be_made_is_refused(launched: Launched, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    assert "--store" in refused(launched)
