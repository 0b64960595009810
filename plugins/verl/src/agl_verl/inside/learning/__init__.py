"""What runs in verl's training workers: losses, critic, LoRA, logprob checks."""
