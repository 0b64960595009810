"""What the policy does in its rollouts, beside what it earns: figures, and alarms where these disagree."""
