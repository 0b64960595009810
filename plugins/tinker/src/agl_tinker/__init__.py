"""The Tinker API both ways: the driver `tinker`, and `agl tinker serve`."""
