"""From tasks to finished rollouts: datasets, batches, the queue, prefetch, quorum, dynamic sampling."""
