"""Progress of the demo's trainings."""

from __future__ import annotations

from esceme.jobs import JobProgress, ProgressSender


def test_every_event_of_a_training_is_sent() -> None:
    sent: list[JobProgress] = []
    callback = ProgressSender(sent.append)
    callback.on_train_begin(3, 9)
    callback.on_iteration_end(4, {"imitation": 2.0})
    callback.on_iteration_end(5, {"imitation": 1.0})
    callback.on_validation_end(5, {"val_seen": {"spl": 0.5}}, is_best=True)
    callback.on_note("resumed")
    notes = [JobProgress(note=text) for text in ("iteration 5: SPL val_seen 50.0", "resumed")]
    assert sent == [JobProgress(3, 9), JobProgress(4, 9, 2.0), JobProgress(5, 9, 1.5), *notes]
