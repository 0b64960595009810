"""What agents record themselves: rewards, messages, objects, exceptions, operations. One door checks it."""
