"""Trackers: TensorBoard, W&B, MLflow, trackio, and those of users."""
