"""Runs inside of XLA that report how far they are, and that can be ended: `watch.c`, as JAX functions.

A loop is run in pieces, one after the other inside of the same XLA program. Before each piece a function in C notes the
iteration in the *slot* of the run, and says how long the piece may be: about a twentieth of a second, so what it costs
does not show. A run whose slot is told to stop ends before its next piece, and its results mean nothing. Slot 0 is for
runs that nobody watches. Without a C compiler, and on several devices, there are no pieces: nothing is reported, and a
run that is interrupted is left behind: it goes on in its thread until it or the process ends.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from polyrhythm.compiler.backends.jax.products import build
from polyrhythm.compiler.backends.jax.run.placing import precision
from polyrhythm.compiler.backends.jax.target import on_cpu

SLOTS = 64

LOOK = 0.1
"""Seconds between looks at how far a run is."""

PATIENCE = 0.7
"""Seconds that an interrupt waits for the end of a run."""

_guard = threading.Lock()
_free = list(range(1, SLOTS))


def library() -> ctypes.CDLL | None:
    """The compiled functions; None if there is no C compiler."""
    return build.built("watch.c").library if build.missing("watch.c", "watch") is None else None


def available() -> bool:
    """Whether loops can be watched: on one CPU, with a C compiler. Several devices would not stop at one iteration."""
    return on_cpu() and jax.device_count() == 1 and library() is not None


def up_to(slot: Any, loop: int, following: Any, end: Any) -> jax.Array:
    """Up to which iteration a loop may run; its next one if it has to stop."""
    call = jax.ffi.ffi_call("polyrhythm_watch", jax.ShapeDtypeStruct((), jnp.int32))
    given = (slot, loop, following, end)
    found: jax.Array = call(*(jnp.int32(value) for value in given))
    return found


class Slot:
    """Where one run notes how far it is; `show` is told the loop that runs and its next iteration."""

    def __init__(self, number: int = 0, show: Callable[[int, int], None] | None = None) -> None:
        self.number, self.show = number, show
        self._calls = 0  # what still runs, and one for whoever holds the slot

    def hold(self) -> None:
        """The slot is in use once more."""
        with _guard:
            self._calls += 1

    def release(self) -> None:
        """The slot is in use once less; the last lets others have it. A run that was left behind still writes to it."""
        with _guard:
            self._calls -= 1
            if self.number and not self._calls:
                _free.append(self.number)

    def call(self, compiled: Callable[..., Any], *arguments: Any) -> Any:
        """What a compiled program makes of its arguments; if it is watched, once that is there.

        XLA runs small programs in the thread that calls them, where nobody hears an interrupt: so another one calls.
        """
        if self.show is None:
            return compiled(*arguments)
        made: list[Any] = []
        failed: list[BaseException] = []
        done = threading.Event()
        wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]

        def work() -> None:
            try:
                with precision(wide):
                    made.append(jax.block_until_ready(compiled(*arguments)))
            except BaseException as error:
                failed.append(error)
            self.release()
            done.set()

        self.hold()
        # A run that hears of an interrupt ends soon, and the interpreter waits for it; others are left behind.
        threading.Thread(target=work, name="polyrhythm-run", daemon=not self.number).start()
        try:
            while not done.wait(LOOK):
                self._shown()
        except KeyboardInterrupt:
            self._end(done)
            raise
        if failed:
            raise failed[0]
        return made[0]

    def _shown(self) -> None:
        into = (ctypes.c_int32 * 3)()
        found = library()
        if found is not None and self.number and self.show is not None:
            found.watch_read(self.number, into)
            self.show(into[0] if into[2] else -1, into[1])

    def _end(self, done: threading.Event) -> None:
        """End the run before its next piece, and wait for that; what does not end by then is left behind."""
        found = library()
        if found is not None and self.number:
            found.watch_stop(self.number)
            done.wait(PATIENCE)


_current: ContextVar[Slot] = ContextVar("slot", default=Slot())  # noqa: B039 (it never changes)


def current() -> Slot:
    """The slot of the run that this thread makes; nobody's outside of `watched`."""
    return _current.get()


@contextmanager
def watched(show: Callable[[int, int], None]) -> Iterator[None]:
    """Let what runs inside be watched, if there is a slot left."""
    found = library() if available() else None
    with _guard:
        number = _free.pop() if found is not None and _free else 0
        if found is not None and number:
            found.watch_reset(number)
    own = Slot(number, show)
    own.hold()
    token = _current.set(own)
    try:
        yield
    finally:
        _current.reset(token)
        own.release()
