"""Commands about what happened: score it again, trace it back, bring it in."""
