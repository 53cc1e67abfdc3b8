# SPDX-License-Identifier: GPL-2.0-or-later
"""From a sequence that shows a disagreement to the shortest that still does.

hypothesis has a shrinker of its own, for values it knows nothing of. This one knows what the steps
are made of, and needs hundreds of steps where that one needs tens of thousands: each is taken by a
real process, maybe under emulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptscope.model.operations import number_of
from ptscope.model.run import Disagreement, Sequence_, Stage

Draws = tuple[tuple[int, int], ...]


def replay(stage: Stage, numbers: Sequence[int]) -> Disagreement | None:
    """Take these steps anew, from an empty process; the disagreement, when there is one."""
    sequence = Sequence_(stage)
    try:
        for number in numbers:
            sequence.step(number)
    except Disagreement as error:
        return error
    finally:
        sequence.end()
    return None


def shrink(
    stage: Stage,
    found: Disagreement,
    enough: Callable[[], bool] = lambda: False,
) -> tuple[Disagreement, bool]:
    """The shortest disagreement, and whether it could be repeated at all.

    No step of it can be left out, and no choice in a step be made smaller. `enough` ends it early.
    """
    again = replay(stage, _numbers(found))
    if again is None:
        return found, False
    best = again
    while not enough():
        shorter = _fewer(stage, best, enough)
        shorter = _simpler(stage, shorter, enough)
        if _size(shorter) >= _size(best):
            break
        best = shorter
    return best, True


def _numbers(found: Disagreement) -> list[int]:
    return [number_of(step.draws) for step in found.steps]


def _size(found: Disagreement) -> tuple[int, int]:
    return len(found.steps), sum(value for step in found.steps for _, value in step.draws)


def _fewer(stage: Stage, best: Disagreement, enough: Callable[[], bool]) -> Disagreement:
    """Leave out runs of steps, long ones first, from the end on."""
    length = len(best.steps) // 2
    while length:
        end = len(best.steps) - 1  # the last step is what shows it
        while end > 0 and not enough():
            start = max(end - length, 0)
            numbers = _numbers(best)
            again = replay(stage, numbers[:start] + numbers[end:])
            if again is not None and len(again.steps) < len(best.steps):
                best = again
                end = min(start, len(best.steps) - 1)
            else:
                end = start
        length //= 2
    return best


def _simpler(stage: Stage, best: Disagreement, enough: Callable[[], bool]) -> Disagreement:
    """Make choices 0, or half of what they are, but for that of the operation."""
    at = 0
    while at < len(best.steps):
        position = 1
        while at < len(best.steps) and position < len(best.steps[at].draws) and not enough():
            draws = best.steps[at].draws
            limit, value = draws[position]
            for smaller in dict.fromkeys((0, value // 2, value - 1)):
                if smaller >= value:
                    continue
                changed = (*draws[:position], (limit, smaller), *draws[position + 1 :])
                numbers = _numbers(best)
                numbers[at] = number_of(changed)
                again = replay(stage, numbers)
                if again is not None and _size(again) < _size(best):
                    best = again
                    break
            position += 1
        at += 1
    return best
