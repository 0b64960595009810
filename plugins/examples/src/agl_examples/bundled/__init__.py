"""What comes with the package: a small agent, and sets of tasks with exact graders."""
