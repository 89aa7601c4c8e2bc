"""When everything happens and where it is kept: blocks, dependences, the scheduler, storage, and their checkers."""
