"""Training: tasks, schedules, the loop, checkpoints, several processes."""
