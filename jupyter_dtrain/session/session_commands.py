"""The sidebar's commands to the engines and the run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..cluster_options import ClusterOptions
from ..elastic.agent import Agent
from ..elastic.engine_pool import EnginePool
from ..elastic.runner import Runner
from ..errors import DtrainError, UsageError
from ..protocol import Command, Reply
from ..trials.pool import LanePool
from .session_views import SessionViews

NOT_RUNNING = "No cell is running."

_log = logging.getLogger(__name__)


class SessionCommands:
    """Carry out commands, or start to. Any thread may call it.

    Parameters
    ----------
    engines : EnginePool
    runner : Runner
    lanes : LanePool
    views : SessionViews
    is_running : callable
        Whether a cell is running on the engines, or is being prepared.
    stop_run, start_cluster, stop_cluster : callable
        Methods of the session.
    """

    def __init__(
        self,
        engines: EnginePool,
        runner: Runner,
        lanes: LanePool,
        views: SessionViews,
        *,
        is_running: Callable[[], bool],
        stop_run: Callable[[], str | None],
        start_cluster: Callable[[ClusterOptions], object],
        stop_cluster: Callable[[], object],
    ) -> None:
        self._engines, self._runner, self._lanes, self._views = engines, runner, lanes, views
        self._is_running, self._stop_run, self._start_cluster, self._stop_cluster = is_running, stop_run, start_cluster, stop_cluster

    def _agent(self) -> Agent:
        supervisor = self._runner.supervisor
        self._lanes.check_none()
        if supervisor is None:
            raise UsageError(NOT_RUNNING)
        return supervisor

    def carry_out(self, command: Command) -> Reply:
        """Carry out a command of the sidebar, or start to."""
        match command.name:
            case "stop_run":
                stopping = self._stop_run()
                return Reply(id=command.id, ok=stopping is not None, message=stopping or NOT_RUNNING)
            case "stop_trial":
                return Reply(id=command.id, ok=True, message=self._lanes.stop_trial(command.run_id))
            case "pause_run":
                self._agent().pause()
                return Reply(id=command.id, ok=True, message="Pausing after this step.")
            case "resume_run":
                self._agent().resume()
                self._views.show_phase("running")
                return Reply(id=command.id, ok=True, message="Training continues.")
            case "checkpoint_now":
                self._agent().write_checkpoint()
                return Reply(
                    id=command.id, ok=True, message="A checkpoint will be written at the next point from which the cell can resume."
                )
            case "roll_back":
                return self._roll_back(command)
            case "start_cluster":
                self._lanes.check_none()
                if self._engines.update.phase in ("starting", "stopping"):
                    return Reply(id=command.id, ok=False, message=f"The cluster is {self._engines.update.phase}.")
                options = ClusterOptions(num_engines=command.num_engines)
                _in_background(lambda: self._start_cluster(options))
                return Reply(id=command.id, ok=True, message="The engines are starting.")
            case "stop_cluster":
                if self._is_running():
                    return Reply(id=command.id, ok=False, message="A cell is running on the engines: stop it first.")
                _in_background(self._stop_cluster)
                return Reply(id=command.id, ok=True, message="The engines are stopping.")
            case "restart_engine":
                return self._restart_engine(command)
            case _:
                raise UsageError(f"{command.name} is not an engine command.")

    def _restart_engine(self, command: Command) -> Reply:
        rank, cluster, supervisor = command.rank, self._engines.cluster, self._runner.supervisor
        self._lanes.check_none()
        if rank is None:
            raise UsageError("Which engine? The command names no rank.")
        if supervisor is not None:
            supervisor.restart(rank)
        elif self._is_running():
            raise UsageError("The run is starting: try again in a moment.")
        elif cluster is None:
            raise UsageError("No engines are running.")
        elif not 0 <= rank < len(cluster.engines):
            raise UsageError(f"There is no rank {rank}.")
        else:
            _in_background(lambda: self._engines.restart(cluster, [rank]))
        return Reply(id=command.id, ok=True, message=f"The engine of rank {rank} is restarting.")

    def _roll_back(self, command: Command) -> Reply:
        supervisor, recorder, step = self._runner.supervisor, self._views.shown, command.step
        if step is None:
            raise UsageError("Which checkpoint? The command names no step.")
        run = recorder.run_update() if recorder is not None else None
        if supervisor is None or run is None or run.run_id != command.run_id:
            raise UsageError(f"That run is not running. `%distribute resume {command.run_id}@{step}` in a cell continues it from there.")
        supervisor.roll_back(step)
        return Reply(id=command.id, ok=True, message=f"Going back to step {step}.")


def _in_background(action: Callable[[], object]) -> None:
    """Run `action` on a thread. A `DtrainError` is dropped, as the state of the cluster already shows it."""

    def submit() -> None:
        try:
            action()
        except DtrainError:
            return
        except Exception:
            _log.exception("A command to the engines failed")

    threading.Thread(target=submit, name="dtrain-cluster", daemon=True).start()
