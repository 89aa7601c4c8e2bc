"""The studies of streaming programs: design points, traces, plots and the pictures of the documentation."""
