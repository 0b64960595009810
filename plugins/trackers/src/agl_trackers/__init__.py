"""Trackers that write a run's curves to TensorBoard, Weights & Biases, MLflow and Trackio."""
