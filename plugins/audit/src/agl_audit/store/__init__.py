"""What is asked of stored rows beside the store's own operations: sums, deletion of runs, other rewards."""
