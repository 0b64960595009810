"""What the suite's HTTP servers (store, gateway, engine) share: whom they answer, and what they read."""
