"""Where a policy, a run or a prompt came from: what ``agl lineage`` prints."""
