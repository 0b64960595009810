"""From tasks to finished rollouts: datasets, batches, enqueueing, prefetching, quorum and dynamic sampling."""
