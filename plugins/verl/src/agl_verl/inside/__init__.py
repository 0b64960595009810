"""What runs in verl's processes: all that is registered with verl, and the child's entry point."""
