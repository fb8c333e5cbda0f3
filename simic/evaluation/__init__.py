"""The trained controller against baselines on hosts and test samples that training never saw."""
