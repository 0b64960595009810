"""What a run opens beside its loop: gateways, engines, and a port for metrics."""
