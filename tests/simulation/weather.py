"""What befalls a whole world at once: by chance, or at a step that was chosen."""

from typing import TYPE_CHECKING, assert_never

from service.domain.plan import EngineRole
from tests.simulation.faults import Storm

if TYPE_CHECKING:
    from tests.simulation.wire import Host
    from tests.simulation.world import World

LONGEST_S = 6.0
SLOWEST_S = 2.0
STORMS = tuple(Storm)
DIE = {Storm.WORKERS: "worker", Storm.APIS: "api", Storm.BEAT: "beat"}


def strike(world: "World", storm: Storm) -> None:
    for_s = world.random.random() * LONGEST_S
    match storm:
        case Storm.SERVER_AWAY | Storm.SERVER_SLOW:
            _server(world, storm, for_s)
        case Storm.STORE_AWAY | Storm.STORE_SLOW | Storm.STORE_WIPED | Storm.DAMAGE | Storm.FORGE:
            _store(world, storm, for_s)
        case Storm.BROKER_AWAY | Storm.BROKER_EMPTIED | Storm.BROKER_RESTORED:
            _broker(world, storm, for_s)
        case Storm.WORKERS | Storm.APIS | Storm.BEAT:
            for process in world.processes:
                if process.kind == DIE[storm] and process.alive:
                    process.kill()
        case (
            Storm.ENGINE_STOPS
            | Storm.PREFILL_DIES
            | Storm.PREFILL_STOPS
            | Storm.PREFILL_EXCHANGED
            | Storm.DECODE_DIES
        ):
            _engines(world, storm, for_s)
        case _:
            assert_never(storm)


def _server(world: "World", storm: Storm, for_s: float) -> None:
    if storm is Storm.SERVER_AWAY:
        world.server.away_until_s = world.loop.time() + for_s
        return
    world.server.slow_s = world.random.random() * SLOWEST_S
    world.loop.call_later(for_s, setattr, world.server, "slow_s", 0.0)


def _store(world: "World", storm: Storm, for_s: float) -> None:
    match storm:
        case Storm.STORE_AWAY:
            world.store.away = True
            world.loop.call_later(for_s, setattr, world.store, "away", False)
        case Storm.STORE_SLOW:
            world.store.slow_s = world.random.random() * SLOWEST_S
            world.loop.call_later(for_s, setattr, world.store, "slow_s", 0.0)
        case Storm.STORE_WIPED:
            world.store.wipe()
        case Storm.DAMAGE:
            world.say(f"damage: {world.store.damage(world.random)}")
        case _:
            world.store.forge(world.random, world.random.choice(world.revisions))


def _broker(world: "World", storm: Storm, for_s: float) -> None:
    match storm:
        case Storm.BROKER_AWAY:
            world.broker.go_away(for_s)
        case Storm.BROKER_EMPTIED:
            world.broker.forget_everything()
        case _:
            world.broker.restore()


def _engines(world: "World", storm: Storm, for_s: float) -> None:
    hosts = list(world.network.hosts.values())
    until_s = world.loop.time() + for_s * 2
    prefill = [host for host in hosts if host.role is EngineRole.PREFILL]
    match storm:
        case Storm.ENGINE_STOPS:
            world.random.choice(hosts).process.stopped_until_s = until_s
        case Storm.PREFILL_STOPS:
            for host in prefill:
                host.process.stopped_until_s = until_s
        case Storm.PREFILL_DIES:
            _kill(prefill)
        case Storm.PREFILL_EXCHANGED:
            for host in prefill:
                host.mistaken = world.new if host.own is world.old else world.old
            _kill(prefill)
        case _:
            _kill([host for host in hosts if host not in prefill])


def _kill(hosts: "list[Host]") -> None:
    for host in hosts:
        host.process.kill()
