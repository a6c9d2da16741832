"""Ray Train under Coxswain: the configuration of a TorchTrainer.

    def train(config):
        session = coxswain.torch.init(plan={"accumulation": 4})
        model = ray.train.torch.prepare_model(model)
        run = coxswain.torch.follow(model, optimizer)
        ...

    ray.train.torch.TorchTrainer(
        train,
        torch_config=coxswain.ray.Config(coordinator="head:7077"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    ).fit()

Importing this module imports torch and ray.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Dict, Optional, Type

import ray.train
from ray.train.torch.config import TorchConfig, _TorchBackend

from .torch import _session
from .torch.torchrun import check_name

# Ranks are in the order of the nodes' names, whose digits count as numbers.
_NODE = "%06d"


class Config(TorchConfig):  # type: ignore[misc]
    """Has the workers of a TorchTrainer join a job of a coordinator: each calls
    coxswain.torch.init() in its training function, without arguments but for
    the plan's, and gets the rank that Ray has given it. torch's process group
    is then over the coordinator's store. The session ends with the training
    function: cleanly, or as failed with its exception.

    coordinator: HOST:PORT, as all workers reach it; of `coxswain serve`.
    job: by default the name of Ray's experiment.
    environment: further variables of the workers, such as COXSWAIN_TLS_CA.
    """

    def __init__(
        self,
        coordinator: str,
        job: Optional[str] = None,
        environment: Optional[Dict[str, str]] = None,
    ) -> None:
        super().__init__()
        self.coordinator = coordinator
        self.job = None if job is None else check_name(job, "`job`")
        self.environment = dict(environment or {})

    @property
    def backend_cls(self) -> Any:
        return _Backend

    @property
    def train_func_context(self) -> Any:
        return _TrainingFunction


class _Backend(_TorchBackend):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self._attempt = -1

    def on_start(self, worker_group: Any, backend_config: Config) -> None:
        """Called for each group of workers, also after a failure."""
        self._attempt += 1
        worker_group.execute(
            _set_variables,
            backend_config.coordinator,
            backend_config.job,
            self._attempt,
            backend_config.environment,
        )


def _set_variables(
    coordinator: str,
    job: Optional[str],
    attempt: int,
    environment: Dict[str, str],
) -> None:
    context = ray.train.get_context()
    if job is None:
        job = check_name(context.get_experiment_name(), "Ray's experiment")
    os.environ.update(
        environment,
        COXSWAIN_COORDINATOR=coordinator,
        COXSWAIN_JOB=job,
        COXSWAIN_NODE=_NODE % context.get_node_rank(),
        COXSWAIN_LOCAL_RANK=str(context.get_local_rank()),
        COXSWAIN_WORLD_SIZE=str(context.get_world_size()),
        COXSWAIN_ATTEMPT=str(attempt),
    )


class _TrainingFunction:
    """What surrounds the training function of a worker, whose process ends
    without the functions of atexit."""

    def __init__(self) -> None:
        self._torch = TorchConfig().train_func_context()

    def __enter__(self) -> None:
        self._torch.__enter__()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Any:
        try:
            session = _session.current()
            if session is not None:
                if error is None:
                    _session.leave()
                session.__exit__(kind, error, trace)
        finally:
            self._torch.__exit__(kind, error, trace)
