"""Trainings in processes of their own: alone, to be killed, or in company, to be compared with one.

The processes are forked from one that has loaded torch already; what they do has to be in this file, since
they cannot import files of tests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from esceme.config import Experiment
from esceme.learning import ProcessGroup, Trainer, TrainingCallback
from esceme.learning.validation import validate
from esceme.observation import Observation
from esceme.training import prepare, train
from esceme.world.atlas import Pose
from school import SPLIT, lesson_plan

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["esceme.training", "esceme.tasks.tours", "torch._dynamo", "tensorboard.summary.writer.record_writer"]
)
PATIENCE = 60.0
"""Seconds after which something hangs."""


class Started(TrainingCallback):
    """Says when training begins."""

    def __init__(self, said: Any) -> None:
        self._said = said

    def begin(self, done: int, total: int) -> None:
        self._said.set()


def learn(experiment: Experiment, data: Path, out: Path, said: Any) -> None:
    """Train; for a process of its own."""
    torch.set_num_threads(1)
    train(experiment, data, out, watch=Started(said))


def die_while_writing(experiment: Experiment, data: Path, out: Path, moment: int, said: Any) -> None:
    """Train, and be killed just before a file of the run is written, renamed or removed the n-th time."""
    left = moment

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event in ("os.rename", "os.remove")) and str(arguments[0]).startswith(str(out)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(listen)
    learn(experiment, data, out, said)


@contextmanager
def started(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that has been started, and does not outlive the block."""
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def in_company(work: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What `work` gives in each of several processes, as `torchrun` starts them; an error's text for a fault.

    None is what comes from a process that died without a word.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        CONTEXT.Process(target=_join_in, args=(work, rank, size, port, sender, arguments))
        for rank, (_, sender) in enumerate(pipes)
    ]
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        return [_hear(receiver) for receiver, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _hear(receiver: Any) -> Any:
    assert receiver.poll(PATIENCE), "a process hangs"
    try:
        return receiver.recv()
    except EOFError:
        return None


def _join_in(
    work: Callable[..., Any], rank: int, size: int, port: int, sender: Any, arguments: Sequence[Any]
) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        sender.send(work(*arguments))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


# -- what is done in company -------------------------------------------------------------------------------


class Learned(NamedTuple):
    """What one process saw of an iteration."""

    said: dict[str, float]
    gradients: dict[str, Any]
    """As arrays; None for a parameter without one."""
    remembered: list[int]


def iterate(experiment: Experiment, data: Path, iterations: int) -> list[Learned]:
    """Some iterations, told one by one."""
    together = ProcessGroup.join()
    course = prepare(experiment, data, Path("nowhere"), watch=TrainingCallback(), together=together)
    lived = [_iterate(course.trainer, iteration) for iteration in range(iterations)]
    together.leave()
    return lived


def _iterate(trainer: Trainer, iteration: int) -> Learned:
    said = trainer.iterate(iteration)
    gradients = {
        name: None if each.grad is None else each.grad.numpy()
        for name, each in trainer.navigator.named_parameters()
    }
    return Learned(said, gradients, visited(trainer))


def visited(trainer: Trainer) -> list[int]:
    """The viewpoints that are remembered."""
    return [] if trainer.memory is None else trainer.memory.bank.visited.nonzero().flatten().tolist()


def course_to_its_end(experiment: Experiment, data: Path, out: Path) -> dict[str, Any]:
    """The weights after training, as arrays."""
    together = ProcessGroup.join()
    course = prepare(experiment, data, out, watch=TrainingCallback(), together=together)
    course.run()
    together.leave()
    return {name: tensor.numpy() for name, tensor in course.trainer.navigator.state_dict().items()}


def meet(data: Path) -> tuple[list[list[bool]], list[float]]:
    """Walk as many steps as the number of one's rank says; what is known of some viewpoints after each."""
    together = ProcessGroup.join()
    course = prepare(lesson_plan(), data, Path("nowhere"), watch=TrainingCallback(), together=together)
    memory, atlas, known = course.trainer.memory, course.atlas, list[list[bool]]()
    assert memory is not None
    memory.begin([], np.random.default_rng(0))
    some = torch.arange(6)
    for step in range(together.rank + 1):
        here = np.array([2 * step + together.rank])
        memory.remember_seen(Observation.of(atlas, Pose(here, np.zeros(1, np.int64))))
        known.append(memory.recall_at(some).any(1).tolist())
    memory.finish()
    known.append(memory.recall_at(some).any(1).tolist())
    sums = together.sums([1.0, 10.0 * together.rank])
    together.leave()
    return known, sums


def judge(experiment: Experiment, data: Path, memory: str) -> tuple[dict[str, float], list[int]]:
    """The scores of a validation, and what training remembers after it."""
    together = ProcessGroup.join()
    course = prepare(experiment, data, Path("nowhere"), watch=TrainingCallback(), together=together)
    trainer = course.trainer
    scores = validate(
        trainer.navigator,
        course.atlas,
        course.sets[SPLIT],
        memory,
        task="r2r",
        encode=course.encode,
        max_steps=5,
        leaking=trainer.memory.bank if trainer.memory is not None and memory == "leaking" else None,
        together=together,
    )
    together.leave()
    return scores, visited(trainer)


def learn_until_one_dies(experiment: Experiment, data: Path, out: Path, after: int) -> None:
    """Train; the second process is killed after an iteration."""
    dies = ProcessGroup.join().rank == 1
    course = prepare(
        experiment,
        data,
        out,
        watch=Death(after) if dies else TrainingCallback(),
        together=ProcessGroup.join(),
    )
    course.run()


class Death(TrainingCallback):
    """Kills its process after an iteration."""

    def __init__(self, after: int) -> None:
        self._after = after

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        if done == self._after:
            os.kill(os.getpid(), signal.SIGKILL)


def learn_as_told(experiment: Experiment, data: Path, out: Path) -> None:
    """Train as `esceme train` does."""
    train(experiment, data, out)
