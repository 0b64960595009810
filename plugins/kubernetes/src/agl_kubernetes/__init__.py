"""Runners of Agent Lightning on Kubernetes: manifests of a Deployment, and one Job a rollout."""
