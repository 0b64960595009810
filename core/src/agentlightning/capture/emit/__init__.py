"""What agents record themselves: rewards, messages, objects, exceptions and operations, checked at one door."""
