"""One network: plain modules for hosts and blueprints."""
