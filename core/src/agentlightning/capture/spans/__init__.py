"""Agent, tool and operation spans: started, stamped with their attempt, and delivered to its sink."""
