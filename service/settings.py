"""All settings of the service, read from `EVERTURN_*` by composition roots and passed on from there."""

from datetime import timedelta
from ipaddress import ip_network
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.domain.errors import InvalidInput
from service.domain.plan import Routing
from service.domain.terms import OnDisconnect

MIB = 1024 * 1024


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="EVERTURN_", frozen=True, extra="ignore")

    database_url: SecretStr
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    default_alias: str = "production"
    default_max_output_tokens: int | None = Field(default=None, ge=1)
    """Of an answer whose request names no limit; None for as many as the model's context has room for."""
    engine_hosts: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")
    """Names, addresses and networks (10.1.0.0/16) that an engine may be registered at: the service sends conversations there."""
    engine_lease_s: float = Field(default=10, gt=0)
    canary_required: bool = False
    """Whether an engine may only register with an answer to the canary. Off for launchers of before there was one; set in what is shipped."""
    engine_silence_s: float = Field(default=120, gt=0)
    """Longest time without a byte from an engine before an attempt is given up."""
    turn_lease_s: float = Field(default=8, gt=0)
    """A turn of a process that is silent for so long is somebody else's."""
    turn_deadline_s: float | None = Field(default=None, gt=0)
    """From the acceptance of a turn to its end, unless its request says otherwise; none where it is not set."""
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    """What becomes of a turn when its client goes away, unless its request says otherwise."""
    on_orphan: Literal["finish", "fail"] = "finish"
    """What becomes of a turn when its process goes away: a worker finishes it, or it fails."""
    turn_wait_s: float = Field(default=120, ge=0)
    """How long a turn queues for an engine of its revision."""
    max_waiting_turns: int = Field(default=1000, ge=1)
    """Of one alias, that may queue for an engine before another; the next one fails with `queue_full`."""
    rebuild_timeout_s: float = Field(default=120, gt=0)
    rebuild_claim_s: float = Field(default=10, gt=0)
    """How long a turn waits for a worker to take its rebuild up; then it prefills where it decodes."""
    rebuild_min_tokens: int = Field(default=1536, ge=1)
    """A shorter history is prefilled where it is decoded: the way over the queue would add more than a tenth. docs/performance.md
    has how that was measured, and how to measure it on other hardware."""
    warm_min_tokens: int = Field(default=64, ge=1)
    """Without KV of the target, from which a rollout warms a history. Nobody waits for that, so the way over the queue counts for little."""
    rebuild_chunk_tokens: int = Field(default=2048, ge=1)
    """Prefilled at a time: a worker that takes a rebuild over goes on behind it, and one for a warm-up gives way behind it."""
    local_slack: int = Field(default=4, ge=0)
    """Attempts that the engine with a conversation's KV may run more than the least loaded one, and still get its turns."""
    split_min_tokens: int = Field(default=512, ge=1)
    """Tokens without KV from which a prompt is prefilled on an engine of role prefill, where its revision has one."""
    split_timeout_s: float = Field(default=60, gt=0)
    """Then it is prefilled where it is decoded."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Of each tenant's key, in each process of the API; 0 for no limit."""
    max_body_bytes: int = Field(default=4 * MIB, ge=1)
    kv_lease_s: int = Field(default=int(timedelta(days=1).total_seconds()), ge=1)
    publish_wait_s: float = Field(default=10, ge=0)
    shutdown_s: float = Field(default=30, ge=0)
    """How long a stopping service lets running turns finish."""
    heartbeat_s: float = Field(default=5, gt=0)
    """Longest silence on a stream before a comment shows that it is alive."""
    retention_every_s: float = Field(default=timedelta(hours=1).total_seconds(), gt=0)
    """How often conversations are erased that are older than their tenant's policy allows."""
    checkpoint_folder: str = ""
    """Of a worker: where signed heads of the log are written; none are where it is empty."""
    checkpoint_every_s: float = Field(default=timedelta(hours=1).total_seconds(), ge=1)
    checkpoint_key: str = ""
    """File with the key that signs them."""
    pool_size: int = Field(default=20, ge=1)
    """Connections to PostgreSQL that a process of the API has at most."""

    @property
    def finishes_orphans(self) -> bool:
        return self.on_orphan == "finish"

    @field_validator("engine_hosts")
    @classmethod
    def _check_engine_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if "/" in host:
                ip_network(host)
        return hosts

    @property
    def routing(self) -> Routing:
        return Routing(local_slack=self.local_slack, split_min_tokens=self.split_min_tokens)


def read_settings() -> Settings:
    """Raises: InvalidInput: naming the variable."""
    try:
        return Settings()  # type: ignore[call-arg]  # the environment gives what is missing
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = "EVERTURN_" + "_".join(str(part) for part in first["loc"]).upper()
        raise InvalidInput(f"{name}: {first['msg']}. Set it in the environment.", name) from error
