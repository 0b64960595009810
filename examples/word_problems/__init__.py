"""Word problems of one and two steps, answered with an arithmetic expression that a calculator evaluates."""
