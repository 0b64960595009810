"""What a run of a given size needs: pure formulas over measured costs (``agl plan``, docs/sizing.md)."""
