"""What the quickstarts (``examples/quickstart_*.py``) share: a small policy that knows how every framework
puts a task, and how it is made (``policy``)."""
