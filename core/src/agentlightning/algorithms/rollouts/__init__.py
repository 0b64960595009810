"""From tasks to finished rollouts: datasets, batches, queueing, prefetching, quorum, dynamic sampling."""
