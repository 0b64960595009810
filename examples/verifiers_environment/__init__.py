"""An environment of verifiers, trained by the line of a run's file that names it."""
