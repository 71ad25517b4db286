"""Progress of long work, as a caller passes it in: `tqdm.tqdm`, what `tj.show_progress` yields, or nothing.

An update of a bar may raise an exception, such as KeyboardInterrupt. It ends the work between two complete pieces.
"""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Bar(Protocol):
    """A progress bar of one loop, in tqdm's form."""

    def __enter__(self) -> Any:
        """Returns the bar."""
        ...

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> Any:
        """Closes the bar."""
        ...

    def update(self, n: float | None = 1) -> Any:
        """Counts n more pieces of work."""
        ...

    def set_postfix(self, ordered_dict: Any = None, /, **values: Any) -> Any:
        """Shows values beside the bar."""
        ...


@runtime_checkable
class Progress(Protocol):
    """Makes the bar of a loop of `total` pieces (None: unknown), after `initial` of them."""

    def __call__(self, *, total: int | None, unit: str, initial: int = 0) -> Bar:
        """Returns the bar."""
        ...


class _Silent:
    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...

    def update(self, n: float | None = 1) -> None: ...

    def set_postfix(self, ordered_dict: Any = None, /, **values: Any) -> None: ...


def silent(*, total: int | None, unit: str, initial: int = 0) -> Bar:
    """A bar that shows nothing: the default of every loop."""
    return _Silent()
