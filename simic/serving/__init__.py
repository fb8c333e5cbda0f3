"""Serve networks and policies over HTTP, log and watch what they are asked, retrain, promote, take back."""
