"""scikit-learn's callbacks (since 1.9): ``model.set_callbacks(ProgressBar())`` watches a fit of any estimator here.

The fit is one task with `STEPS` subtasks, each an equal part of the trees or iterations. Without callbacks ``verbose``
decides what is shown. Before scikit-learn 1.9 there is no ``set_callbacks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from woodlot.estimators.progress import is_beside, progress_bar
from woodlot.protocols.core.message import Progress

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: there are no callbacks yet."""

    def with_callbacks(method: Any) -> Any:
        """Leave the method as it is."""
        return method


__all__ = ["STEPS", "CallbackSupportMixin", "begin_fit", "end_fit", "fit_progress", "watched"]

F = TypeVar("F", bound=Callable[..., Any])

STEPS = 20
"""Subtasks of a fit that callbacks see."""


def watched(fit: F) -> F:
    """A fit after which callbacks are let go of, also if it fails."""
    return cast("F", with_callbacks(fit))


def begin_fit(model: Any) -> None:
    """Tell the model's callbacks that a fit begins; must be called on the model that the user has."""
    if getattr(model, "_skl_callbacks", None):
        model._init_callback_context(max_subtasks=STEPS).call_on_fit_task_begin(estimator=model)


def end_fit(model: Any) -> None:
    """Tell them that it is done."""
    context = getattr(model, "_callback_fit_ctx", None)
    if context is not None:
        context.call_on_fit_task_end(estimator=model)


@contextmanager
def fit_progress(model: Any, what: str) -> Iterator[Callable[[Progress], None] | None]:
    """What a training calls with its progress: the model's callbacks, or else a bar as ``verbose`` asks for."""
    context = getattr(model, "_callback_fit_ctx", None)
    if context is None:
        with progress_bar(model.verbose, what) as show:
            yield show
        return
    done = [0]

    def step_to(step: int) -> None:
        while done[0] < step:
            done[0] += 1
            task = context.subcontext(task_name=what).call_on_fit_task_begin(estimator=model)
            task.call_on_fit_task_end(estimator=model)

    def step(progress: Progress) -> None:
        if not is_beside(progress):
            step_to(STEPS * progress.done // max(progress.total, 1))

    yield step
    step_to(STEPS)
