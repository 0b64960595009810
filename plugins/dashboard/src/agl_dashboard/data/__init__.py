"""Reading: stores by place, an index of rollouts in memory, changes of a store."""
