"""Turns end to end: what each plan does, and that every prompt is exactly the stored ids and the new ones."""

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import text

from service.domain.events import KvRefused, TenantId, TurnCompleted
from service.engine.protocol import cache_salt
from tests.api.stack import TENANT, Stack, eventually, running_stack
from tests.engines.simulated import SimulatedEngine, states_of
from tests.engines.simulated_text import ASSISTANT, STOP, USER, letter, render


def test_the_first_turn_is_cold_and_says_so(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    answer = stack.ask("hello there", conversation=stack.conversation())
    prompt = render([{"role": "user", "content": "hello there"}])
    assert engine.prompts == [tuple(prompt)]
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(prompt)
    assert answer["kv"]["plan"] == "cold"
    assert answer["kv"]["source"] == "none"
    assert answer["revision"] == engine.revision
    assert answer["revision_changed"] is False
    assert answer["usage"]["input_tokens"] == len(prompt)


def test_the_next_prompt_is_the_stored_window_and_the_rendered_delta(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    window = stack.state(conversation).window
    assert window == (*engine.prompts[0], *engine.answer(engine.prompts[0]))
    stack.ask("two", conversation=conversation)
    assert engine.prompts[1] == (*window, USER, *map(letter, "two"), STOP, ASSISTANT)


def test_a_later_turn_loads_the_kv_of_the_one_before(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    answer = stack.ask("two", conversation=conversation)
    assert answer["kv"]["plan"] == "reuse"
    assert answer["kv"]["source"] == "reused"
    assert answer["kv"]["tokens_loaded"] > 0
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == answer["kv"]["tokens_loaded"]
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[1])


def test_an_upgrade_refuses_the_old_kv_and_rebuilds_it_on_the_new_revision(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    artifact = stack.await_artifacts(conversation, 1)[0]
    new = stack.start_engine("b", alias=True)
    answer = stack.ask("two", conversation=conversation)
    assert answer["revision"] == new.revision
    assert answer["revision_changed"] is True
    assert answer["kv"]["plan"] == "rebuild"
    assert answer["kv"]["source"] == "rebuilt"
    assert answer["kv"]["refusal"] == {"reason": "revision_mismatch", "differing_fields": ["weights"]}
    assert answer["kv"]["tokens_replayed"] > 0
    assert len(stack.rung) == 1
    refused = next(e for e in stack.events(conversation) if isinstance(e, KvRefused))
    assert refused.refusal.artifact == artifact
    assert refused.engine == new.boot
    assert answer["output"][0]["content"][0]["text"] == new.cold_text(new.prompts[-1])
    assert old.prompts[-1] != new.prompts[-1]


def test_without_the_guard_the_same_upgrade_would_answer_in_other_words(stack: Stack) -> None:
    """The simulated model is able to show the fault that the others of these tests look for."""
    old = stack.start_engine("a")
    new = stack.start_engine("b")
    prompt = tuple(range(10, 30))
    states = states_of(old.descriptor, prompt)[1:13]
    assert new.answer(prompt, states) != new.answer(prompt)


def test_kv_of_another_revision_is_never_accepted_even_from_an_engine_without_a_guard(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    artifact = stack.await_artifacts(conversation, 1)[0]
    new = stack.start_engine("b", alias=True)
    new.faults.unguarded = True
    with stack.database.begin() as conn:
        conn.execute(
            text("UPDATE artifacts SET revision = :r WHERE artifact_id = :a"),
            {"r": new.revision, "a": artifact},
        )
    answer = stack.post(input="two", conversation=conversation)
    assert answer.status_code == 503
    assert not any(
        isinstance(e, TurnCompleted) and e.engine_revision == new.revision for e in stack.events(conversation)
    )


def test_a_short_history_is_prefilled_on_the_spot_after_an_upgrade(database: str) -> None:
    with running_stack(database, rebuild_min_tokens=10_000) as stack:
        stack.start_engine("a", alias=True)
        conversation = stack.conversation()
        stack.ask("one", conversation=conversation)
        window = len(stack.state(conversation).window)
        new = stack.start_engine("b", alias=True)
        answer = stack.ask("two", conversation=conversation)
        assert answer["kv"]["plan"] == "cold"
        assert answer["kv"]["tokens_replayed"] == window
        assert stack.rung == []
        assert answer["output"][0]["content"][0]["text"] == new.cold_text(new.prompts[-1])


def test_a_turn_waits_until_an_engine_of_its_revision_arrives(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.retire(old)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "two", conversation=conversation)
        eventually(lambda: stack.state(conversation).open_turn)
        new = stack.start_engine("b", alias=True)
        answer = asked.result()
    assert answer["revision"] == new.revision
    assert answer["kv"]["plan"] == "rebuild"


def test_a_turn_that_no_engine_comes_for_fails_and_the_conversation_goes_on(database: str) -> None:
    with running_stack(database, turn_wait_s=0.3) as stack:
        engine = stack.start_engine("a", alias=True)
        conversation = stack.conversation()
        stack.retire(engine)
        answer = stack.post(input="one", conversation=conversation)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "no_engine"
        assert answer.headers["x-should-retry"] == "false"
        stack.start_engine("a", alias=True)
        assert stack.ask("two", conversation=conversation)["status"] == "completed"


def test_stay_keeps_a_conversation_on_its_old_revision(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation(on_upgrade="stay")
    stack.ask("one", conversation=conversation)
    stack.start_engine("b", alias=True)
    answer = stack.ask("two", conversation=conversation)
    assert answer["revision"] == old.revision
    assert answer["kv"]["plan"] == "stay"


def test_stay_replays_once_the_old_revision_is_gone(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation(on_upgrade="stay")
    stack.ask("one", conversation=conversation)
    new = stack.start_engine("b", alias=True)
    stack.retire(old)
    assert stack.ask("two", conversation=conversation)["revision"] == new.revision


def test_stay_strict_is_refused_once_the_old_revision_is_gone(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation(on_upgrade="stay_strict")
    stack.ask("one", conversation=conversation)
    stack.start_engine("b", alias=True)
    stack.retire(old)
    answer = stack.post(input="two", conversation=conversation)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "revision_unavailable"
    assert old.revision in answer.json()["error"]["message"]


def test_a_turns_own_policy_wins_over_its_conversations(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation(on_upgrade="stay")
    stack.ask("one", conversation=conversation)
    new = stack.start_engine("b", alias=True)
    answer = stack.ask("two", conversation=conversation, on_upgrade="replay")
    assert answer["revision"] == new.revision


def test_t3_another_tokenizer_renders_the_history_anew(stack: Stack) -> None:
    """Case T3, after the identity was found to differ."""
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    first = stack.ask("one", conversation=conversation)["output"][0]["content"][0]["text"]
    new = stack.start_engine("b", tokenizer="other letters", alias=True)
    answer = stack.ask("two", conversation=conversation)
    history = [("user", "one"), ("assistant", first), ("user", "two")]
    assert new.prompts == [tuple(render([{"role": r, "content": c} for r, c in history]))]
    assert answer["kv"]["plan"] == "full_render"


def test_t2_a_template_that_is_not_append_only_is_rendered_in_full_and_stored_whole(stack: Stack) -> None:
    """Case T2."""
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    engine.faults.full_render = True
    stack.ask("two", conversation=conversation)
    assert stack.state(conversation).window == (*engine.prompts[1], *engine.answer(engine.prompts[1]))
    last = stack.state(conversation).last
    assert last is not None
    assert last.extends is None


def test_rolling_back_reads_the_old_revisions_kv_again(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    stack.start_engine("b", alias=True)
    stack.ask("two", conversation=conversation)
    stack.move_alias(old)
    answer = stack.ask("three", conversation=conversation)
    assert answer["revision"] == old.revision
    assert answer["kv"]["plan"] == "reuse"
    assert answer["kv"]["source"] == "reused"
    assert answer["output"][0]["content"][0]["text"] == old.cold_text(old.prompts[-1])


def test_all_stored_kv_may_be_lost_between_two_turns(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    stack.store.clear()
    answer = stack.ask("two", conversation=conversation)
    assert answer["kv"]["refusal"]["reason"] == "manifest_missing"
    assert answer["output"][0]["content"][0]["text"] == engine.cold_text(engine.prompts[-1])


def test_a_failed_rebuild_costs_speed_and_nothing_else(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    new = stack.exits.enter_context(SimulatedEngine("b", stack.store))
    stack.register(new, role="decode")
    stack.move_alias(new)
    answer = stack.ask("two", conversation=conversation)
    assert answer["kv"]["plan"] == "rebuild"
    assert answer["kv"]["source"] == "none"
    assert "no ready engine for prefill" in answer["kv"]["reason"]
    assert answer["output"][0]["content"][0]["text"] == new.cold_text(new.prompts[-1])


def test_cached_tokens_are_those_that_were_loaded_and_those_that_the_engine_had(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    first = stack.ask("hello, and tell me of the sea")
    stack.await_artifacts(first["conversation"]["id"], 1)
    engine.faults.evidence = {"local_tokens": 3}
    second = stack.ask("two", previous_response_id=first["id"])
    loaded = second["kv"]["tokens_loaded"]
    assert loaded > 0
    assert second["usage"]["input_tokens_details"] == {"cached_tokens": loaded + 3, "cache_write_tokens": 0}


def test_the_length_limit_makes_a_response_incomplete(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    answer = stack.ask("one", max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["output_tokens"] == 2
    assert answer["output"][0]["status"] == "incomplete"


def test_without_a_limit_an_answer_ends_where_the_context_does(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    whole = stack.ask("one")
    assert (whole["status"], whole["max_output_tokens"]) == ("completed", None)
    assert engine.requests[-1]["sampling_params"]["max_tokens"] is None
    engine.faults.max_model_len = len(engine.prompts[-1]) + 3
    cut = stack.ask("one")
    assert (cut["status"], cut["usage"]["output_tokens"]) == ("incomplete", 3)
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}


def test_an_operators_limit_holds_where_a_request_names_none_and_is_told(database: str) -> None:
    with running_stack(database, default_max_output_tokens=2) as stack:
        stack.start_engine("a", alias=True)
        cut, named = stack.ask("one"), stack.ask("one", max_output_tokens=3)
        body = {"model": "production", "messages": [{"role": "user", "content": "one"}]}
        chat = stack.http.post("/v1/chat/completions", json=body).json()
    assert (cut["status"], cut["max_output_tokens"], cut["usage"]["output_tokens"]) == ("incomplete", 2, 2)
    assert (named["max_output_tokens"], named["usage"]["output_tokens"]) == (3, 3)
    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == ("length", 2)


def test_after_an_answer_cut_off_by_length_the_engine_closes_it_in_the_delta(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation, max_output_tokens=2)
    window = stack.state(conversation).window
    stack.ask("two", conversation=conversation)
    assert engine.prompts[1] == (*window, STOP, USER, *map(letter, "two"), STOP, ASSISTANT)


def test_an_alias_that_moves_mid_turn_leaves_the_attempt_where_it_is(stack: Stack) -> None:
    old = stack.start_engine("a", alias=True)
    old.faults.hold_after = 2
    conversation = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "one", conversation=conversation)
        eventually(lambda: old.faults.hold_after is None)
        new = stack.start_engine("b", alias=True)
        old.faults.release.set()
        answer = asked.result()
    assert answer["revision"] == old.revision
    assert answer["output"][0]["content"][0]["text"] == old.cold_text(old.prompts[0])
    assert new.prompts == []


def test_an_engine_that_drains_gets_no_new_turns(stack: Stack) -> None:
    one = stack.start_engine("a", alias=True)
    two = stack.start_engine("a")
    assert stack.admin.post(f"/admin/engines/{one.boot}/drain").status_code == 200
    for _ in range(3):
        stack.ask("hello")
    assert one.prompts == []
    assert len(two.prompts) == 3


def test_t6_a_prompt_beyond_the_context_is_refused_with_both_numbers(stack: Stack) -> None:
    """Case T6, by default."""
    engine = stack.start_engine("a", alias=True)
    engine.faults.max_model_len = 30
    answer = stack.post(input="x" * 40)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input"
    assert "43 tokens" in error["message"]
    assert "30" in error["message"]


def test_a_turn_that_was_too_long_leaves_the_conversation_as_it_was(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation(items=[{"role": "system", "content": "be brief"}])
    stack.ask("one", conversation=conversation)
    window = stack.state(conversation).window
    engine.faults.max_model_len = len(window) + 20
    assert stack.post(input="x" * 400, conversation=conversation).status_code == 400
    assert stack.ask("two", conversation=conversation)["status"] == "completed"
    assert engine.prompts[-1][: len(window)] == window
    assert ord("x") + 10 not in engine.prompts[-1][len(window) :]


def test_a_failed_first_turn_still_shows_its_instructions(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.max_model_len = 3
    conversation = stack.conversation()
    assert stack.post(input="one", conversation=conversation, instructions="be brief").status_code == 400
    (turn,) = stack.state(conversation).turns
    shown = stack.http.get(f"/v1/responses/{turn}").json()
    assert (shown["status"], shown["instructions"]) == ("failed", "be brief")


def test_tenants_do_not_share_a_cache_salt_and_revisions_do_not_either(stack: Stack) -> None:
    one = stack.start_engine("a", alias=True)
    stack.ask("hello")
    two = stack.start_engine("b", alias=True)
    stack.ask("hello")
    assert one.requests[0]["cache_salt"] == cache_salt(one.descriptor.digest, TENANT)
    salts = {one.requests[0]["cache_salt"], two.requests[0]["cache_salt"]}
    assert cache_salt(one.descriptor.digest, TenantId("other")) not in salts
    assert len(salts) == 2


def upgraded(stack: Stack) -> tuple[str, SimulatedEngine]:
    """A conversation with one answer, and the engine that its next turn must be rebuilt on."""
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    return conversation, stack.start_engine("b", alias=True)


def test_a_broker_that_is_down_does_not_fail_a_turn_whose_rebuild_is_found_later(stack: Stack) -> None:
    conversation, new = upgraded(stack)
    stack.bell.broken = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack.ask, "two", conversation=conversation)
        eventually(lambda: stack.rung)
        stack.bell.work(stack.rung[0])
        answer = asked.result()
    assert answer["kv"]["source"] == "rebuilt"
    assert answer["revision"] == new.revision


def test_a_rebuild_that_nobody_takes_is_called_off_and_the_turn_decodes_without(database: str) -> None:
    with running_stack(database, rebuild_timeout_s=0.3) as stack:
        conversation, new = upgraded(stack)
        stack.bell.unheard = True
        answer = stack.ask("two", conversation=conversation)
        assert answer["kv"]["source"] == "none"
        assert "without a rebuild" in answer["kv"]["reason"]
        assert answer["output"][0]["content"][0]["text"] == new.cold_text(new.prompts[-1])
        row = stack.admin.get(f"/admin/rebuilds/{stack.rung[0]}").json()
        assert row["state"] == "superseded"
