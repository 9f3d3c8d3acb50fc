"""What a step's devices agree on: failure as a value inside the compiled step."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The agreed outcome of a proposal; the largest one that any device says wins.

    - `GO`: all that was read is right; commit.
    - `RETRY`: something bad was seen (memory, batch, next state), or the proposal belongs to a step that was not
      committed. Nothing is committed, damaged memory is repaired, the host replays. If it recurs, look at the batch and
      the model.
    - `DROP`: the host gave the batch up; the step tag moves on without an update.
    - `DRAIN`: the host wants a quiet state, to move a shard.
    - `ROLLBACK`: devices disagree about which step they are at; only a snapshot makes them equal again.
    - `STOP`: the host ends the run.
    """

    GO = 0
    RETRY = 1
    DROP = 2
    DRAIN = 3
    ROLLBACK = 4
    STOP = 5
