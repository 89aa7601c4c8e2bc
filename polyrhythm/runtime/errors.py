"""Errors of checkpoints on disk."""

from __future__ import annotations

from polyrhythm.errors import PolyrhythmError


class CheckpointMismatchError(PolyrhythmError):
    """A checkpoint belongs to another run than the one that is to go on from it.

    A run goes on only where it was stopped: with the same program, backend, inputs, bounds and seed. Anything else
    would give a result that neither run has. It may go further than it was to, with a larger bound of the iterations,
    unless something computed before depends on that bound; the message says what. Nothing has run when it is raised,
    and no file was changed.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> x = pr.input("x", (), (i,))
    >>> total = pr.recurrent((), ((i, I + 1),))
    >>> total[0] = 0.0
    >>> total[i + 1] = total + x
    >>> program = pr.compile(total[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> program(x=[1.0, 2.0], checkpoint=pr.Checkpoints(folder.name, over=i))
    array(3., dtype=float32)
    >>> program(x=[1.0, 5.0], checkpoint=pr.Checkpoints(folder.name, over=i))
    Traceback (most recent call last):
    ...
    polyrhythm.runtime.errors.CheckpointMismatchError: the checkpoint ... belongs to another run: the input 'x' ...
      at ...
      fix: call the program as before, or give this run another folder; nothing was changed

    Give every run a folder of its own:

    >>> program(x=[1.0, 5.0], checkpoint=pr.Checkpoints(folder.name + "/other", over=i))
    array(6., dtype=float32)
    >>> folder.cleanup()
    """


class CheckpointDamagedError(PolyrhythmError):
    """A checkpoint is not what was written: the file was cut short or changed.

    A run writes a file under another name first and never leaves half of one, so this is the fault of the disk, of a
    copy, or of an edit. The run does not begin silently from an older checkpoint: that is for you to decide.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> w = pr.recurrent((), ((i, I + 1),))
    >>> w[0] = 1.0
    >>> w[i + 1] = 2.0 * w
    >>> program = pr.compile(w[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoints = pr.Checkpoints(folder.name, over=i, every=2)
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> last = checkpoints.folder / "iteration-000000004.safetensors"
    >>> _ = last.write_bytes(last.read_bytes()[:-1])
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    Traceback (most recent call last):
    ...
    polyrhythm.runtime.errors.CheckpointDamagedError: the checkpoint ... is damaged: ...
      at ...
      fix: move the file away to go on from iteration 2; nothing was changed

    >>> last.unlink()
    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> folder.cleanup()
    """


class CheckpointInUseError(PolyrhythmError):
    """Another run is writing to the same folder of checkpoints.

    >>> import polyrhythm as pr, tempfile
    >>> i, I = pr.dim("i")
    >>> w = pr.recurrent((), ((i, I + 1),))
    >>> w[0] = 1.0
    >>> w[i + 1] = 2.0 * w
    >>> program = pr.compile(w[I], backend="numpy")
    >>> folder = tempfile.TemporaryDirectory()
    >>> checkpoints = pr.Checkpoints(folder.name, over=i)
    >>> with checkpoints.held():
    ...     program(bounds={I: 4}, checkpoint=checkpoints)
    Traceback (most recent call last):
    ...
    polyrhythm.runtime.errors.CheckpointInUseError: another run is writing checkpoints to ...
      at ...
      fix: wait until it has ended, or give each run a folder of its own

    >>> program(bounds={I: 4}, checkpoint=checkpoints)
    array(16., dtype=float32)
    >>> folder.cleanup()
    """
