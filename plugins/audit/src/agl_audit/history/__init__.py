"""What happened, afterwards: scored again, traced back to where it came from, brought in from elsewhere."""
