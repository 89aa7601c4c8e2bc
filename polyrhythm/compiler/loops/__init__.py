"""The Loop IR: loops over planned storage, the only thing a backend sees."""
