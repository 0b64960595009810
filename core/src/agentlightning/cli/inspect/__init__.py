"""Commands that read runs: runs, rollouts, trace, explain, verify."""
